"""`beige channels`: where people reach agents, and whether it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from beige.paths import Home

if TYPE_CHECKING:
    from beige.messages.channels import ChannelList

LIST_S = 10.0


def channels(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the channels of the configuration: the agents that each may speak to, and its state. Exit code 1
    if one is not up; `beige logs channels` then says more.

    \b
    Examples:
      beige channels
      beige channels --json | jq '.channels[] | select(.state != "up") | .problem'
    """
    from beige.cli.calls import run
    from beige.cli.terminal import emit
    from beige.config import source

    home = Home.find()
    # Read, not loaded: this terminal may lack the variables that the house was started with.
    configured = bool(source.read(home.config).get("channels"))
    found = run(_ask(home)) if configured else None
    if json_output:
        from msgspec import to_builtins

        emit(to_builtins(found) if found else {"channels": []})
    else:
        print(render(found) if found else "no channel is configured: docs/channels.md says how")
    if found and any(channel.state != "up" for channel in found.channels):
        raise typer.Exit(1)


async def _ask(home: Home) -> ChannelList:
    from beige.cli.calls import connected
    from beige.messages.base import Empty

    async with connected(home) as bus:
        found: ChannelList = await bus.call("channels.list", Empty(), ttl_s=LIST_S)
        return found


def render(found: ChannelList) -> str:
    from beige.cli.terminal import table

    rows = [["CHANNEL", "ADAPTER", "AGENTS", "STATE", "PROMPTS", "PROBLEM"]]
    for channel in found.channels:
        agents = ", ".join(channel.agents)
        rows.append(
            [channel.name, channel.adapter, agents, channel.state, str(channel.prompts), channel.problem]
        )
    return table(rows)
