"""Reads a script file and decides what a scripted model answers. Pure but for `load`.

A step is one answer of the model; `docs/scripted.md` is the guide. Where a conversation stands in its
script follows from the conversation alone, so another worker, or a restart, goes on where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import json5
import msgspec
from msgspec import Meta, Struct

from beige.errors import ConfigError
from services.llm.conversation import Assistant, Message, Prompt, Text, ToolResult

MAX_SCRIPT = 4 * 1024 * 1024
NO_SCRIPT = "No script in this file is for that prompt."
THE_END = "The script ends here: it has no step left for this prompt."
_VARIABLE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_VARIABLES = ("prompt", "last.text", "last.stdout", "last.stderr", "last.exit_code")


class Call(Struct, forbid_unknown_fields=True):
    tool: Annotated[str, Meta(min_length=1)]
    args: dict[str, Any] = {}


class Step(Struct, forbid_unknown_fields=True, rename={"otherwise": "else"}):
    say: str = ""
    tool: str = ""
    args: dict[str, Any] = {}
    tools: list[Call] = []
    wait: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    expect: str = ""
    otherwise: str = ""

    @property
    def calls(self) -> list[Call]:
        return [Call(self.tool, self.args), *self.tools] if self.tool else self.tools

    @property
    def answers(self) -> bool:
        return bool(self.say or self.tool or self.tools)


class Script(Struct, forbid_unknown_fields=True):
    steps: list[Step]
    name: str = ""
    when: str = ""
    """Regular expression on the prompt; empty: any prompt."""


class _File(Struct, forbid_unknown_fields=True):
    scripts: list[Script]


@dataclass(frozen=True)
class Check:
    """Before a step: the last tool result must match, else this is said and the turn ends."""

    expect: str
    otherwise: str


@dataclass(frozen=True)
class Answer:
    """What a step says. With calls, the model goes on with the next step when their results are there."""

    say: str = ""
    calls: tuple[Call, ...] = ()
    wait_s: float = 0.0
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Scripts:
    """A valid script file: per script its `when` and its answers."""

    scripts: tuple[tuple[re.Pattern[str], tuple[Answer, ...]], ...]

    def next_answer(self, conversation: Sequence[Message]) -> Answer:
        """The answer to a conversation that ends in a prompt or in tool results, filled in."""
        chosen, position, prompt, last = None, [0] * len(self.scripts), "", None
        for message in conversation:
            match message:
                case Prompt(text=text):
                    chosen, prompt = self._choose(text), text
                case Assistant(stop_reason=stop) if chosen is not None and stop not in ("cancelled", "error"):
                    position[chosen] += 1
                case ToolResult():
                    last = message
        if chosen is None:
            return Answer(NO_SCRIPT)
        answers = self.scripts[chosen][1]
        if position[chosen] >= len(answers):
            return Answer(THE_END)
        return _fill(answers[position[chosen]], _values(prompt, last), last)

    def _choose(self, prompt: str) -> int | None:
        found = (index for index, (when, _) in enumerate(self.scripts) if when.search(prompt))
        return next(found, None)


def load(path: Path) -> Scripts:
    """The scripts of a file. ConfigError names the file and the place in it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SCRIPT + 1)
    except OSError as error:
        raise ConfigError(str(path), f"the script can't be read ({error.strerror})") from None
    if len(content) > MAX_SCRIPT:
        raise ConfigError(str(path), f"the script is larger than {MAX_SCRIPT} bytes")
    return parse(content.decode(errors="replace"), str(path))


def parse(text: str, source: str) -> Scripts:
    """`source` names the text in errors."""
    try:
        value = json5.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(source, f"is not JSON5 ({error})") from None
    if isinstance(value, list):
        value = {"scripts": [{"steps": value}]}
    try:
        file = msgspec.convert(value, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(source, str(error), "see docs/scripted.md") from None
    return Scripts(tuple(_compile(script, source, n) for n, script in enumerate(file.scripts)))


def _compile(script: Script, source: str, number: int) -> tuple[re.Pattern[str], tuple[Answer, ...]]:
    place = f"{source}: {script.name or f'scripts[{number}]'}"
    answers: list[Answer] = []
    wait_s, checks = 0.0, []
    for at, step in enumerate(script.steps):
        where = f"{place}.steps[{at}]"
        _check_step(step, where)
        wait_s += step.wait
        if step.expect:
            checks.append(Check(step.expect, step.otherwise or "That is not what I expected."))
        if step.answers:
            answers.append(Answer(step.say, tuple(step.calls), wait_s, tuple(checks)))
            wait_s, checks = 0.0, []
    if wait_s or checks:
        raise ConfigError(place, "ends with wait or expect", "a step with say or tool must follow")
    return _pattern(script.when, f"{place}.when"), tuple(answers)


def _check_step(step: Step, where: str) -> None:
    if not (step.answers or step.wait or step.expect):
        raise ConfigError(
            where, "does nothing", "allowed: say, tool with args, tools, wait, expect with else"
        )
    if step.args and not step.tool:
        raise ConfigError(where, "has args but no tool")
    _pattern(step.expect, f"{where}.expect")
    used = [step.say, step.otherwise, *_texts([call.args for call in step.calls])]
    for name in (name for text in used for name in _VARIABLE.findall(text)):
        if name not in _VARIABLES:
            raise ConfigError(where, f"{{{{{name}}}}} is unknown", f"allowed: {', '.join(_VARIABLES)}")


def _pattern(text: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as error:
        raise ConfigError(where, f"is not a regular expression ({error})") from None


def _fill(answer: Answer, values: dict[str, str], last: ToolResult | None) -> Answer:
    seen = last.text if last else ""
    for check in answer.checks:
        if not re.search(check.expect, seen, re.MULTILINE):
            return Answer(_substitute(check.otherwise, values), wait_s=answer.wait_s)
    calls = tuple(Call(call.tool, _substitute(call.args, values)) for call in answer.calls)
    return Answer(_substitute(answer.say, values), calls, answer.wait_s)


def _values(prompt: str, last: ToolResult | None) -> dict[str, str]:
    values = dict.fromkeys(_VARIABLES, "") | {"prompt": prompt}
    if last is None:
        return values
    values["last.text"] = last.text
    values["last.exit_code"] = "" if last.exit_code is None else str(last.exit_code)
    for block in last.content:
        if isinstance(block, Text) and (found := re.match(r"(stdout|stderr)(?: \([^)]*\))?:\n", block.text)):
            values[f"last.{found[1]}"] = block.text[found.end() :].rstrip("\n")
    return values


def _substitute(value: Any, values: dict[str, str]) -> Any:
    """One pass: what a variable holds is never looked at again, it came from the sandbox."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: values[found[1]], value)
    if isinstance(value, dict):
        return {name: _substitute(item, values) for name, item in value.items()}
    return [_substitute(item, values) for item in value] if isinstance(value, list) else value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]
