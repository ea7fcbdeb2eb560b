"""`beige tools`: call a plugin tool on an agent's behalf."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from beige.cli import new_app
from beige.paths import Home

app = new_app(help="Call plugin tools as an agent would.")


@app.callback()
def group() -> None:
    """Call plugin tools as an agent would."""


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def call(
    agent: Annotated[str, typer.Argument(help="The agent in whose name it is called.")],
    tool: Annotated[str, typer.Argument(help="The tool, e.g. kv.")],
    args: Annotated[list[str] | None, typer.Argument(help="The tool's arguments.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
) -> None:
    """Call one tool. Policy decides by the agent's list of tools; the call is audited. The exit code is
    the tool's. Options go before AGENT: what follows belongs to the tool.

    \b
    Examples:
      beige tools call assistant kv set city Rome
      beige tools call --json assistant kv get city
    """
    from beige.cli.calls import check_agent, run

    home = Home.find()
    check_agent(home, agent)
    raise typer.Exit(run(_call(home, agent, tool, args or [], json_output)))


async def _call(home: Home, agent: str, tool: str, args: list[str], json_output: bool) -> int:
    from msgspec import structs

    from beige.cli.calls import CHANNEL, connected
    from beige.cli.terminal import Writer, emit
    from beige.messages.tools import ToolCall

    async with connected(home) as bus:
        result = await bus.call("tools.call", ToolCall(tool, args), agent=agent, channel=CHANNEL, ttl_s=600.0)
    if json_output:
        emit(structs.asdict(result))
        return 0
    if result.output:
        Writer(sys.stdout).write(result.output if result.output.endswith("\n") else result.output + "\n")
    if result.error:
        Writer(sys.stderr).write(result.error.rstrip("\n") + "\n")
    return int(result.exit_code)
