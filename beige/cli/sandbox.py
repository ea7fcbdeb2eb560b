"""`beige sandbox`: the agents' containers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from beige.cli import new_app
from beige.errors import Malformed
from beige.paths import Home

app = new_app(help="List and remove the agents' containers.")
CONTAINER_S = 60.0


@app.command("list")
def list_sandboxes(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show each agent's container.

    \b
    Example:
      beige sandbox list --json | jq -r '.[].container'
    """
    from msgspec import structs

    from beige.cli.calls import run
    from beige.cli.terminal import emit, table

    found = [structs.asdict(info) for info in run(_list(Home.find()))]
    if json_output:
        emit(found)
        return
    rows = [["AGENT", "STATE", "CONTAINER", "IMAGE", "PROFILE", "EXECUTOR"]]
    rows += [[i["agent"], i["state"] or "none", i["container"][:12], i["image"], i["profile"], i["executor"]]
             for i in found]  # fmt: skip
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


async def _list(home: Home) -> list[Any]:
    from beige.cli.calls import connected
    from beige.messages import Empty

    async with connected(home) as bus:
        return list((await bus.call("sandbox.list", Empty(), ttl_s=CONTAINER_S)).sandboxes)


async def _remove(home: Home, agents: list[str]) -> list[str]:
    from beige.cli.calls import connected
    from beige.messages import AgentRef, Empty

    async with connected(home) as bus:
        if not agents:
            listed = await bus.call("sandbox.list", Empty(), ttl_s=CONTAINER_S)
            agents = [info.agent for info in listed.sandboxes if info.container]
        for agent in agents:
            await bus.call("sandbox.remove", AgentRef(), agent=agent, ttl_s=CONTAINER_S)
    return agents
