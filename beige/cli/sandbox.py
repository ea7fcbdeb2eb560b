"""`beige sandbox`: the agents' containers."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from beige.cli import new_app
from beige.cli.sandbox_logs import logs, stop
from beige.cli.sandbox_shell import shell
from beige.errors import Malformed
from beige.paths import Home

app = new_app(help="List, inspect, verify, enter, stop and remove the agents' containers.")
app.command()(shell)
app.command()(logs)
app.command()(stop)
CONTAINER_S = 60.0
VERIFY_S = 600.0
CELL = 48
"""Characters of a value in a table; --json has them all."""


@app.command("list")
def list_sandboxes(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show each agent's container.

    \b
    Examples:
      beige sandbox list --json | jq -r '.[].container'
      beige sandbox list --json | jq -r '.[] | select(.runtime == "runsc") | .agent'
    """
    from msgspec import structs

    from beige.cli.calls import run
    from beige.cli.terminal import emit, table

    found = [structs.asdict(info) for info in run(_list(Home.find()))]
    if json_output:
        emit(found)
        return
    rows = [["AGENT", "STATE", "CONTAINER", "IMAGE", "PROFILE", "RUNTIME", "EXECUTOR"]]
    rows += [
        [
            i["agent"],
            i["state"] or "none",
            i["container"][:12],
            i["image"],
            i["profile"],
            i["runtime"],
            i["executor"],
        ]
        for i in found
    ]
    print(table(rows))


@app.command("rm")
def remove(
    agents: Annotated[list[str] | None, typer.Argument(help="Agents whose containers are removed.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Of every agent.")] = False,
) -> None:
    """Remove containers, with what runs in them. The workspace stays; the next call makes a new one.

    \b
    Example:
      beige sandbox rm assistant
    """
    from beige.cli.calls import run

    if bool(agents) == every:
        raise Malformed("name agents, or give --all")
    for agent in run(_remove(Home.find(), agents or [])):
        print(f"removed the container of {agent}")


@app.command()
def rebuild(agent: Annotated[str, typer.Argument(help="The agent.")]) -> None:
    """Replace an agent's container, with what runs in it, by a new one. The workspace stays.

    \b
    Example:
      beige sandbox rebuild assistant
    """
    from beige.cli.calls import check_agent, run

    home = Home.find()
    check_agent(home, agent)
    print(f"made {run(_rebuild(home, agent)).container}")


@app.command()
def show(
    agent: Annotated[str, typer.Argument(help="The agent.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every flag of an agent's container: as beige wants it, and as the engine has it where the two
    differ (marked with !). Makes no container.

    \b
    Example:
      beige sandbox show assistant --json | jq '.flags[] | select(.differs)'
    """
    from msgspec import structs

    from beige.cli.calls import check_agent, run
    from beige.cli.terminal import emit, safe, table

    home = Home.find()
    check_agent(home, agent)
    view = run(_show(home, agent))
    if json_output:
        flags = [structs.asdict(flag) for flag in view.flags]
        usage = None if view.workspace is None else structs.asdict(view.workspace)
        info = structs.asdict(view.info)
        emit({**structs.asdict(view), "info": info, "flags": flags, "workspace": usage})
        return
    info = view.info
    print(safe(
        f"{agent}: {info.container or 'no container'} ({info.state}), profile {info.profile}, "
        f"runtime {view.runtime or 'the engine default'}, executor {info.executor or 'not connected'}"
    ))  # fmt: skip
    print(safe("limits: " + ", ".join(f"{name} {value}" for name, value in view.limits.items())))
    print(safe(f"workspace: {_workspace(view)}"))
    if info.profile == "open" and info.container:
        print(f"root layer: {_root_layer(view)}, no quota (on the engine's disk)")
    print(table(_flag_rows(view.flags, compare=bool(info.container))))


def _root_layer(view: Any) -> str:
    size = view.root_layer_bytes
    return "too many files to count" if size is None else f"{size >> 10} KiB"


def _workspace(view: Any) -> str:
    usage = view.workspace
    if usage is None:
        size = view.limits.get("workspaceSize", "None")
        return "no quota (workspaceSize)" if size == "None" else f"{size}, not mounted"
    return (
        f"{usage.used_bytes >> 10} of {usage.limit_bytes >> 10} KiB, "
        f"{usage.used_files} of {usage.limit_files} files"
    )


def _flag_rows(flags: list[Any], *, compare: bool) -> list[list[str]]:
    rows = [["", "FLAG", "BEIGE", "ENGINE"]]
    for flag in flags:
        same = not flag.differs and (flag.wanted is not None or flag.engine is None)
        engine = "" if not compare else "the same" if same else _cell(flag.engine)
        rows.append(["!" if flag.differs else "", flag.name, _cell(flag.wanted), engine])
    return rows


def _cell(value: Any, width: int = CELL) -> str:
    import json

    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= width else text[: width - 1] + "…"


@app.command()
def verify(
    agent: Annotated[str, typer.Argument(help="The agent.")],
    abuse: Annotated[
        bool,
        typer.Option("--abuse", help="Also use up processes, memory and /tmp; other commands may suffer."),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Try the walls of an agent's running container, from inside and outside (it is made if there is
    none). Exit code 0 only if each probe saw exactly what it expected.

    \b
    Example:
      beige sandbox verify assistant
    """
    from msgspec import structs

    from beige.cli.calls import check_agent, run
    from beige.cli.terminal import emit

    home = Home.find()
    check_agent(home, agent)
    results, report = run(_verify(home, agent, abuse))
    if json_output:
        probes = [structs.asdict(one) for one in results]
        emit({"agent": agent, **structs.asdict(report), "probes": probes})
    else:
        _print_verified(agent, results, report)
    if report.failed:
        raise typer.Exit(1)


def _print_verified(agent: str, results: list[Any], report: Any) -> None:
    from beige.cli.terminal import one_line, table

    rows = [["RESULT", "SIDE", "PROBE", "SHOWS", "EXPECTED", "SEEN"]]
    rows += [[r.status.upper(), r.side, r.id, r.shows, _cell(r.expected, 24), _cell(r.seen, 24)]
             for r in results]  # fmt: skip
    print(table(rows))
    for one in results:
        if one.status == "fail":
            # What was seen is the container's word.
            print(f"\nFAIL {one.id}: {one.shows}")
            print(f"  expected: {one_line(one.expected)}\n  seen:     {one_line(one.seen)}")
    print(
        f"\n{agent} ({report.container}, {report.profile}, {report.runtime}): {report.passed} passed, "
        f"{len(report.failed)} failed, {len(report.skipped)} skipped"
    )


async def _rebuild(home: Home, agent: str) -> Any:
    from beige.cli.calls import connected
    from beige.messages.base import AgentRef

    async with connected(home) as bus:
        await bus.call("sandbox.remove", AgentRef(), agent=agent, ttl_s=CONTAINER_S)
        return await bus.call("sandbox.ensure", AgentRef(), agent=agent, ttl_s=CONTAINER_S)


async def _show(home: Home, agent: str) -> Any:
    from beige.cli.calls import connected
    from beige.messages.base import AgentRef

    async with connected(home) as bus:
        return await bus.call("sandbox.show", AgentRef(), agent=agent, ttl_s=CONTAINER_S)


async def _verify(home: Home, agent: str, abuse: bool) -> tuple[list[Any], Any]:
    from beige.cli.calls import connected
    from beige.cli.terminal import Progress
    from beige.messages.sandbox import VerifyRequest

    progress, results = Progress(), []
    try:
        async with (
            connected(home) as bus,
            bus.open("sandbox.verify", VerifyRequest(abuse), agent=agent, ttl_s=VERIFY_S) as stream,
        ):
            async for one in stream:
                results.append(one)
                if sys.stderr.isatty() or one.status == "fail" or one.number in (1, one.total):
                    progress(f"probe {one.number} of {one.total}: {one.id} {one.status.upper()}")
            return results, await stream.result()
    finally:
        progress.done()


async def _list(home: Home) -> list[Any]:
    from beige.cli.calls import connected
    from beige.messages.base import Empty

    async with connected(home) as bus:
        return list((await bus.call("sandbox.list", Empty(), ttl_s=CONTAINER_S)).sandboxes)


async def _remove(home: Home, agents: list[str]) -> list[str]:
    from beige.cli.calls import connected
    from beige.messages.base import AgentRef, Empty

    async with connected(home) as bus:
        if not agents:
            listed = await bus.call("sandbox.list", Empty(), ttl_s=CONTAINER_S)
            agents = [info.agent for info in listed.sandboxes if info.container]
        for agent in agents:
            await bus.call("sandbox.remove", AgentRef(), agent=agent, ttl_s=CONTAINER_S)
    return agents
