"""`beige sessions`: an agent's conversations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beige.cli import new_app
from beige.cli.session_settings import settings
from beige.errors import BeigeError, Malformed, NotFound
from beige.paths import Home

if TYPE_CHECKING:
    from beige.bus import Bus
    from beige.messages.llm import PromptEvent, SessionInfo, SessionList

app = new_app(help="List, show, go on with, copy, cancel, summarise and remove conversations.")
MAX_LINE = 512 * 1024
"""Characters of one prompt."""
SUMMARY_S = 900.0

app.command()(settings)

Agent = Annotated[str, typer.Argument(help="The agent's name in config.json5.")]
Session = Annotated[str, typer.Argument(help="The session's id, as `beige sessions list` shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_sessions(
    agent: Annotated[str, typer.Argument(help="The agent; left out: every agent.")] = "",
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="So many per agent.")] = 20,
    json_output: Json = False,
) -> None:
    """Show an agent's sessions, the last used one first.

    \b
    Examples:
      beige sessions list assistant
      beige sessions list --json | jq -r '.[] | select(.outcome == "damaged") | .session'
    """
    from msgspec import to_builtins

    from beige.cli.calls import run
    from beige.cli.terminal import emit

    found = run(_list(Home.find(), agent, limit))
    infos = [info for listed in found for info in listed.sessions]
    if json_output:
        emit([to_builtins(info) for info in infos])
        return
    _print_list(infos)
    hidden = sum(listed.total - len(listed.sessions) for listed in found)
    if hidden:
        print(f"{hidden} older ones are not shown: --limit", file=sys.stderr)


def _print_list(infos: list[SessionInfo]) -> None:
    from beige.cli.terminal import table

    rows = [["AGENT", "SESSION", "LAST USED", "PROMPTS", "LAST TURN", "COST", "BEGINS WITH"]]
    rows += [
        [
            info.agent,
            info.session,
            info.updated[:19].replace("T", " "),
            str(info.prompts),
            info.outcome or "-",
            "-" if info.cost is None else f"${info.cost:.4f}",
            info.problem or info.title,
        ]
        for info in infos
    ]
    print(table(rows))


@app.command()
def show(
    agent: Agent,
    session: Session,
    full: Annotated[
        bool, typer.Option("--full", help="Whole results of tools, and the model's thoughts.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="The session's file: one JSON object per line.")
    ] = False,
) -> None:
    """Print a conversation: prompts, answers, tool calls and what came of them, and what went wrong.

    \b
    Examples:
      beige sessions show assistant 20261129-161500-1a2b3c4d
      beige sessions show assistant 20261129-161500-1a2b3c4d --json | jq -r 'select(.type == "prompt").text'
    """
    from beige.cli.calls import check_agent, run

    home = Home.find()
    check_agent(home, agent)
    run(_show(home, agent, session, full, json_output))


@app.command()
def resume(
    agent: Agent,
    session: Annotated[str, typer.Argument(help="The session's id; left out: the last used one.")] = "",
    json_output: Annotated[
        bool, typer.Option("--json", help="Events, then the result, one JSON object per line.")
    ] = False,
) -> None:
    """Go on with a conversation: each line of standard input is a prompt. Ctrl-C cancels the turn that is
    under way, Ctrl-D (or Ctrl-C between two turns) ends. Without a terminal the first failure ends it.

    \b
    Examples:
      beige sessions resume assistant
      printf 'Run the tests.\\nFix what fails.\\n' | beige sessions resume assistant nightly
    """
    from beige.cli.calls import check_agent, run

    home = Home.find()
    check_agent(home, agent)
    info = run(_find(home, agent, session))
    print(f"{agent}, session {info.session}: {info.prompts} prompts so far", file=sys.stderr)
    _converse(home, agent, info.session, json_output)


def _converse(home: Home, agent: str, session: str, json_output: bool) -> None:
    from beige.cli import prompt
    from beige.cli.calls import run
    from beige.cli.terminal import Writer

    err, asks = Writer(sys.stderr), sys.stdin.isatty()
    while True:
        if asks:
            err.styled("> ", "bold", end="")
        line = sys.stdin.readline(MAX_LINE)
        if not line:
            return
        if not line.strip():
            continue
        try:
            run(prompt.turn(home, agent, line.strip(), session, json_output))
        except KeyboardInterrupt:
            if not asks:
                raise
            err.styled("[cancelled]", "yellow")
        except BeigeError as error:
            if not asks:
                raise
            err.line(f"beige: {error}", "red")


@app.command()
def fork(
    agent: Agent,
    session: Session,
    to: Annotated[str, typer.Option(help="The copy's id; left out: one is made up.")] = "",
    prompts: Annotated[int, typer.Option(min=0, help="Copy only the first so many turns.")] = 0,
    json_output: Json = False,
) -> None:
    """Copy a conversation, to try another way from there on. A turn that has not ended is left out.

    \b
    Example:
      beige sessions fork assistant nightly --prompts 2 --to nightly-again
    """
    from beige.messages.llm import ForkRequest

    info = _ask("llm.fork", ForkRequest(to, prompts), agent, session)
    _tell(info, f"{info.session} has the first {info.prompts} turns of {session}", json_output)


@app.command("rm")
def remove(
    agent: Agent,
    sessions: Annotated[list[str], typer.Argument(help="The sessions' ids.")],
    json_output: Json = False,
) -> None:
    """Delete conversations. The agent's workspace and the audit log keep what they have.

    \b
    Example:
      beige sessions rm assistant 20261129-161500-1a2b3c4d
    """
    from beige.messages.base import AgentRef

    for session in sessions:
        _tell(_ask("llm.remove", AgentRef(), agent, session), f"removed {session}", json_output)


@app.command()
def cancel(agent: Agent, session: Session, json_output: Json = False) -> None:
    """End a session's running turn and those that wait, whoever made them. What they run is killed; the
    session can be used again at once.

    \b
    Example:
      beige sessions cancel assistant 20261129-161500-1a2b3c4d
    """
    from beige.messages.base import Empty

    result = _ask("bus.cancel", Empty(), agent, session)
    words = f"cancelled {result.cancelled}" if result.cancelled else "nothing was under way"
    _tell(result, words, json_output)


@app.command()
def compact(
    agent: Agent,
    session: Session,
    keep: Annotated[str, typer.Option(help="What the summary must keep, in words for the model.")] = "",
    json_output: Json = False,
) -> None:
    """Have the agent's model summarise a conversation, so that the next turns cost less. The session's file
    keeps all of it.

    \b
    Example:
      beige sessions compact assistant nightly --keep "the list of failing tests"
    """
    from beige.cli.calls import check_agent, run
    from beige.cli.terminal import Writer

    home = Home.find()
    check_agent(home, agent)
    result = run(_compact(home, agent, session, keep))
    if not json_output:
        Writer(sys.stdout).write(result.summary.rstrip() + "\n")
    _tell(result, f"stands for {result.entries} messages now", json_output, sys.stderr)


# --- over the bus -----------------------------------------------------------------------------------


def _ask(method: str, body: Any, agent: str, session: str) -> Any:
    from beige.cli.calls import check_agent, connected, run

    async def asked() -> Any:
        async with connected(home) as bus:
            return await bus.call(method, body, agent=agent, session=_named(session))

    home = Home.find()
    check_agent(home, agent)
    return run(asked())


def _named(session: str) -> str:
    from beige.sessions import check_id

    if not session:
        raise Malformed("session: name the session")
    return check_id(session)


def _tell(value: Any, words: str, json_output: bool, stream: Any = None) -> None:
    from msgspec import to_builtins

    from beige.cli.terminal import emit, safe

    if json_output:
        emit(to_builtins(value))
    else:
        print(safe(words), file=stream or sys.stdout)


async def _list(home: Home, agent: str, limit: int) -> list[SessionList]:
    from beige.cli.calls import check_agent, connected
    from beige.config import source
    from beige.messages.llm import SessionsRequest

    if agent:
        check_agent(home, agent)
    agents = [agent] if agent else sorted(source.read(home.config).get("agents") or {})
    async with connected(home) as bus:
        return [await bus.call("llm.sessions", SessionsRequest(limit), agent=name) for name in agents]


async def _find(home: Home, agent: str, session: str) -> SessionInfo:
    from beige.cli.calls import connected
    from beige.messages.base import AgentRef
    from beige.messages.llm import SessionsRequest

    async with connected(home) as bus:
        if session:
            found: SessionInfo = await bus.call(
                "llm.session", AgentRef(), agent=agent, session=_named(session)
            )
            return found
        latest: SessionList = await bus.call("llm.sessions", SessionsRequest(1), agent=agent)
        if not latest.sessions:
            raise NotFound(f"{agent} has no session yet: `beige prompt {agent} ...` begins one")
        return latest.sessions[0]


async def _show(home: Home, agent: str, session: str, full: bool, json_output: bool) -> None:
    from beige.cli.calls import connected
    from beige.cli.session_view import LineSplitter, SessionView
    from beige.cli.terminal import Writer
    from beige.messages.llm import HistoryRequest
    from beige.wire import MAX_TTL_S

    out = Writer(sys.stdout)
    view, lines = SessionView(out, full), LineSplitter()
    async with connected(home) as bus:
        options: dict[str, Any] = {"agent": agent, "session": _named(session), "ttl_s": MAX_TTL_S}
        async with bus.open("llm.history", HistoryRequest(), **options) as stream:
            async for piece in stream:
                if json_output:
                    out.bytes(piece)
                    continue
                for line in lines.feed(piece):
                    view.line(line)
            info = await stream.result()
    if not json_output:
        view.end(info)


async def _compact(home: Home, agent: str, session: str, keep: str) -> Any:
    from beige.cli.calls import CHANNEL, connected
    from beige.messages.llm import CompactRequest
    from beige.sessions import turn_options

    async with connected(home) as bus:
        return await _watched(bus, CompactRequest(keep), turn_options(agent, _named(session), CHANNEL))


async def _watched(bus: Bus, body: Any, options: dict[str, Any]) -> Any:
    from beige.cli.terminal import Writer

    err = Writer(sys.stderr)
    async with bus.open("llm.compact", body, **options) as stream:
        async for event in stream:
            said: PromptEvent = event
            if said.kind != "compaction":
                err.line(f"[{said.text}]", "yellow")
        return await stream.result()
