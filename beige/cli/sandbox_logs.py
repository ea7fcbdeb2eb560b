"""`beige sandbox logs` and `stop`: what a container said and how it is, and its end."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from beige.errors import Malformed
from beige.paths import Home

CALL_S = 60.0


def logs(
    agent: Annotated[str, typer.Argument(help="The agent.")],
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=10000, help="How many of the last.")
    ] = 100,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the last lines of a container's own log, and the state of its executor. Makes no container.
    What its commands printed is the answer of each exec; what beige did with it: `beige logs sandbox`.

    \b
    Example:
      beige sandbox logs assistant --json | jq .out_of_memory
    """
    from beige.cli.calls import check_agent, run
    from beige.cli.terminal import Writer, emit, safe

    home = Home.find()
    check_agent(home, agent)
    found = run(_logs(home, agent, lines))
    if json_output:
        emit(_as_json(found))
        return
    Writer(sys.stderr).write(safe(_state(found)) + "\n")
    Writer(sys.stdout).bytes(found.log)


def _as_json(found: Any) -> dict[str, Any]:
    from msgspec import structs

    log = found.log.decode("utf-8", "replace")
    return {**structs.asdict(found), "info": structs.asdict(found.info), "log": log}


def _state(found: Any) -> str:
    info = found.info
    text = f"{info.agent}: {info.container or 'no container'} ({info.state})"
    if found.started:
        text += f", started {found.started}"
    if info.state == "exited":
        memory = ", out of memory" if found.out_of_memory else ""
        text += f", ended {found.finished} with {found.exit_code}{memory}"
    text += f"; executor {info.executor or 'not connected'}, {found.running} calls running"
    if found.refused:
        text += f", {found.refused} foreign connections refused"
    return text + (f"; last connection lost: {found.last_lost}" if found.last_lost else "")


def stop(
    agents: Annotated[list[str] | None, typer.Argument(help="Agents whose containers end.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Of every agent.")] = False,
) -> None:
    """End containers, with what runs in them. Their logs stay until the next call makes new ones; the
    workspace stays for good. One that does not run is fine.

    \b
    Example:
      beige sandbox stop assistant && beige sandbox logs assistant
    """
    from beige.cli.calls import check_agent, run

    if bool(agents) == every:
        raise Malformed("name agents, or give --all")
    home = Home.find()
    for agent in agents or []:
        check_agent(home, agent)
    for info in run(_stop(home, agents or [])):
        print(f"{info.agent}: {info.state}")


async def _logs(home: Home, agent: str, lines: int) -> Any:
    from beige.cli.calls import connected
    from beige.messages.sandbox import LogsRequest

    async with connected(home) as bus:
        return await bus.call("sandbox.logs", LogsRequest(lines), agent=agent, ttl_s=CALL_S)


async def _stop(home: Home, agents: list[str]) -> list[Any]:
    from beige.cli.calls import connected
    from beige.messages.base import AgentRef, Empty

    async with connected(home) as bus:
        if not agents:
            listed = await bus.call("sandbox.list", Empty(), ttl_s=CALL_S)
            agents = [info.agent for info in listed.sandboxes if info.state == "running"]
        return [await bus.call("sandbox.stop", AgentRef(), agent=agent, ttl_s=CALL_S) for agent in agents]
