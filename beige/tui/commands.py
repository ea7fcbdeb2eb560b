"""Decides what a line that was typed means: a command of this client, or a prompt. No I/O."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from beige.errors import Malformed

COMMANDS: dict[str, tuple[str, str]] = {
    "new": ("", "begin a new session"),
    "status": ("", "show agent, session, settings, usage"),
    "verbose": ("on|off", "unfold tool calls as they run (/v for short)"),
    "sessions": ("", "choose one of the agent's sessions"),
    "resume": ("[SESSION]", "go on with a session; without a name, the last used one"),
    "agent": ("[AGENT]", "talk to another agent"),
    "model": ("[PROVIDER/MODEL|default]", "ask another of the agent's models first"),
    "thinking": ("off|minimal|low|medium|high|default", "how much the model may think"),
    "compact": ("[WHAT TO KEEP]", "summarise the session's older turns"),
    "cancel": ("", "end the turn and what it is running (Esc)"),
    "export": ("[FILE]", "write the session to a Markdown file"),
    "help": ("", "show this"),
    "quit": ("", "leave (Ctrl-C twice); a running turn goes on"),
}
ALIASES = {"v": "verbose", "q": "quit", "exit": "quit", "?": "help"}
KEYS = {
    "Enter": "send",
    "Ctrl-J, \\ Enter": "new line",
    "Up, Down": "history, at the first and last line",
    "Esc": "cancel the turn",
    "Ctrl-C": "copy what is selected, else twice: leave",
    "Tab": "walk through the tool calls, Enter unfolds one",
    "PgUp, PgDn": "scroll",
}
SWITCHES = {"on": True, "off": False}


@dataclass(frozen=True)
class Prompt:
    text: str


@dataclass(frozen=True)
class Command:
    name: str
    argument: str = ""


def parse(text: str) -> Prompt | Command | None:
    """None for nothing. A line that begins with / is a command, with // a prompt that begins with /.
    Malformed for one that does not exist or misses its argument, with what would be right."""
    text = text.strip()
    if not text:
        return None
    if text.startswith("//"):
        return Prompt(text[1:])
    if not text.startswith("/"):
        return Prompt(text)
    word, _, argument = text[1:].partition(" ")
    name, argument = ALIASES.get(word.lower(), word.lower()), argument.strip()
    if name not in COMMANDS:
        raise Malformed(_unknown(word))
    wanted = COMMANDS[name][0]
    if wanted and not wanted.startswith("[") and argument not in wanted.split("|"):
        raise Malformed(f"write /{name} {wanted}")
    if not wanted and argument:
        raise Malformed(f"/{name} takes nothing behind it")
    return Command(name, argument)


def _unknown(word: str) -> str:
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1)
    hint = f"did you mean /{near[0]}?" if near else "/help lists them."
    return f"there is no command /{word[:40]}: {hint} To send a text that begins with /, write //"


def help_text() -> str:
    rows = [(f"/{name} {argument}".rstrip(), text) for name, (argument, text) in COMMANDS.items()]
    width = max(len(left) for left, _ in [*rows, *KEYS.items()])
    lines = [f"{left.ljust(width)}  {right}" for left, right in [*rows, ("", ""), *KEYS.items()]]
    return "\n".join(line.rstrip() for line in lines)
