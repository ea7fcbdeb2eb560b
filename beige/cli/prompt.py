"""`beige prompt`: one turn of an agent, shown as it happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from beige.cli.terminal import OUTPUT, safe, summary
from beige.errors import NotFound
from beige.paths import Home

if TYPE_CHECKING:
    from beige.cli.terminal import Writer
    from beige.messages.llm import PromptEvent, PromptResult


def prompt(
    agent: Annotated[str, typer.Argument(help="The agent's name in config.json5.")],
    text: Annotated[str, typer.Argument(help="What to do; - reads it from standard input.")],
    session: Annotated[
        str, typer.Option(help="Continue this conversation, or begin one with this name.")
    ] = "",
    again: Annotated[
        bool, typer.Option("--continue/--new", help="Continue the agent's latest conversation, or begin one.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events, then the result, one JSON object per line.")
    ] = False,
) -> None:
    """Give an agent a task and watch it work. The answer goes to standard output, everything else (its
    tool calls, notices) to standard error. Ctrl-C cancels the turn and what it is running.

    \b
    Examples:
      beige prompt assistant "What is in your workspace?"
      beige prompt assistant --continue "Now sort it by size."
      git diff | beige prompt assistant - > review.md
    """
    from beige.cli.calls import check_agent, run

    home = Home.find()
    check_agent(home, agent)
    if text == "-":
        text = sys.stdin.read()
    if again and not session:
        session = latest_session(home, agent)
    run(turn(home, agent, text, session, json_output))


def latest_session(home: Home, agent: str) -> str:
    files = sorted((home.sessions / agent).glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise NotFound(f"{agent} has no conversation yet: leave --continue out to begin one")
    return files[-1].stem


async def turn(home: Home, agent: str, text: str, session: str, json_output: bool) -> None:
    from beige.cli.calls import CHANNEL, connected
    from beige.cli.session_settings import shown_as
    from beige.cli.terminal import Writer
    from beige.messages.llm import PromptRequest
    from beige.sessions import check_id, turn_options

    async with connected(home) as bus:
        view: JsonView | TextView = JsonView()
        if not json_output:
            # A session without a name is a new one: nothing was set for it.
            wanted = await shown_as(bus, agent, session) if session else {}
            view = TextView(Writer(sys.stdout), Writer(sys.stderr), **wanted)
        stream = bus.open(
            "llm.prompt", PromptRequest(text), **turn_options(agent, check_id(session), CHANNEL)
        )
        async with stream:
            async for event in stream:
                view.event(event)
            view.result(await stream.result())


class JsonView:
    """Events as they are, one per line; the last line is the result."""

    def event(self, event: PromptEvent) -> None:
        self._line("event", event)

    def result(self, result: PromptResult) -> None:
        self._line("result", result)

    def _line(self, kind: str, body: PromptEvent | PromptResult) -> None:
        import msgspec

        from beige.unseen import escape_json

        line = msgspec.json.encode({"type": kind, **msgspec.to_builtins(body)})
        print(escape_json(line).decode(), flush=True)


class TextView:
    """The answer on `out`; what happens on the way on `err`."""

    def __init__(self, out: Writer, err: Writer, *, verbose: bool = True, streaming: bool = True) -> None:
        """`verbose`: tool calls are shown; `streaming`: the answer while it is written."""
        self._out, self._err = out, err
        self._verbose, self._streaming = verbose, streaming
        self._held = ""
        """Text of an answer that is shown when it is complete."""
        self._open: Writer | None = None
        """The writer whose line is not ended yet."""

    def event(self, event: PromptEvent) -> None:
        if event.kind == "text_delta" and not self._streaming:
            self._held += event.text
        elif event.kind == "text_delta":
            self._flow(self._out, event.text)
        elif event.kind == "thinking_delta":
            self._note(event.text if self._streaming else "")
        elif event.kind in ("tool_start", "tool_output", "tool_end"):
            self._tool(event)
        elif event.kind == "message_end":
            self._release()
        elif event.kind in ("notice", "model_fallback", "compaction"):
            if event.kind == "model_fallback":
                self._held = ""
            self._line(f"[{event.text}]", "yellow")
        else:
            self._end_line()

    def _tool(self, event: PromptEvent) -> None:
        if not self._verbose:
            return
        if event.kind == "tool_start":
            self._line(f"> {event.tool} {summary(event.tool, event.args)}", "cyan")
        elif event.kind == "tool_output":
            self._note(event.text)
        else:
            self._line(f"  {_outcome(event)}", "red" if event.is_error else "dim")

    def _release(self) -> None:
        held, self._held = self._held, ""
        self._flow(self._out, held)
        self._end_line()

    def result(self, result: PromptResult) -> None:
        self._release()
        calls = f"{result.tool_calls} tool call{'' if result.tool_calls == 1 else 's'}"
        speaker = f"{result.model}, a script and no language model" if result.scripted else result.model
        why = "" if result.stop_reason in ("", "end_turn", "stop") else f", stopped: {result.stop_reason}"
        self._line(f"[{speaker}; {calls}{used(result)}{why}; session {result.session}]", "dim")

    def _flow(self, writer: Writer, text: str) -> None:
        if not text:
            return
        if self._open is not None and self._open is not writer:
            self._end_line()
        writer.write(text)
        self._open = None if text.endswith("\n") else writer

    def _note(self, text: str) -> None:
        """Output and thoughts go between lines of ours: each line of them is marked."""
        if not text:
            return
        whole = text.replace("\r\n", "\n")
        begins = OUTPUT if self._open is not self._err else ""
        marked = begins + whole.removesuffix("\n").replace("\n", f"\n{OUTPUT}")
        self._flow(self._err, safe(marked + "\n" * whole.endswith("\n")))

    def _line(self, text: str, style: str) -> None:
        self._end_line()
        self._err.line(text, style)

    def _end_line(self) -> None:
        if self._open is not None:
            self._open.write("\n")
            self._open = None


def used(result: PromptResult) -> str:
    """`, 1,234 tokens in, 56 out, $0.0042`; nothing where nothing is known."""
    from beige import money

    output = result.usage.get("output_tokens", 0)
    tokens = money.tokens(result.usage)
    known = f", {tokens - output:,} tokens in, {output:,} out" if tokens else ""
    return known + (f", {money.shown(money.nano(result.cost))}" if result.cost else "")


def _outcome(event: PromptEvent) -> str:
    seconds = f"{event.duration_ms / 1000:.2f} s"
    if event.is_error:
        first = (event.text.strip().splitlines() or ["failed"])[0]
        return f"failed: {first[:200]} ({seconds})"
    code = f"exit code {event.exit_code}, " if event.exit_code else ""
    return f"done ({code}{seconds})"
