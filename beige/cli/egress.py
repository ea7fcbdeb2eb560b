"""`beige egress`: what an agent connects to, and the list it would need."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beige.cli import new_app
from beige.paths import Home

if TYPE_CHECKING:
    from beige.messages.policy import LearnResult

app = new_app(help="See and learn what agents connect to.")
SPARE_S = 30.0
Agent = Annotated[str, typer.Argument(help="The agent.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def learn(
    agent: Agent,
    duration: Annotated[str, typer.Option("--for", help="How long: 90s, 10m, 2h.")] = "10m",
    json_output: Json = False,
) -> None:
    """Let an agent connect anywhere on the internet for a time (until Ctrl-C at the latest), show where it
    does, and print the list that would have sufficed. It needs `sandbox.egress`, if only `{ allow: [] }`.
    Private addresses stay out of reach. Each such connection is in the audit log with the rule "learning".

    \b
    Examples:
      beige egress learn assistant --for 30m
      beige egress learn assistant --for 2m --json | jq .allow
    """
    from beige.cli.calls import check_agent, run
    from beige.cli.egress_view import pasteable, seconds
    from beige.cli.terminal import emit

    home, duration_s = Home.find(), seconds(duration)
    check_agent(home, agent)
    missing, result = run(_learn(home, agent, duration_s))
    if json_output:
        emit({"agent": agent, "allow": result.allow, "missing": missing, "connections": result.connections})
        return
    print(pasteable(result.allow))


async def _learn(home: Home, agent: str, duration_s: float) -> tuple[list[str], LearnResult]:
    """What the agent's own list lacks, and all of it."""
    import asyncio
    import signal

    from beige.cli.calls import connected
    from beige.cli.terminal import Writer
    from beige.messages.policy import LearnRequest

    out, missing = Writer(sys.stderr), []
    loop = asyncio.get_running_loop()
    async with (
        connected(home) as bus,
        bus.open("policy.learn", LearnRequest(duration_s), agent=agent, ttl_s=duration_s + SPARE_S) as stream,
    ):
        ending: list[Any] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: ending.append(loop.create_task(stream.end())))
        out.write(f"LEARNING: {agent} may connect anywhere for {duration_s:.0f} s; Ctrl-C ends it\n")
        async for item in stream:
            out.write(f"{'listed ' if item.listed else 'MISSING'}  {item.destination}\n")
            missing += [] if item.listed else [item.destination]
        return missing, await stream.result()


@app.command("list")
def list_destinations(
    agent: Agent,
    since: Annotated[str, typer.Option(help="From here on: 15m, 2h, 7d ago, or ISO 8601.")] = "",
    denied: Annotated[bool, typer.Option("--denied", help="Only what was denied.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show where an agent connected to, or was not let, from the audit log; needs no running service.

    \b
    Examples:
      beige egress list assistant --since 2h
      beige egress list assistant --denied --json | jq -r '.[].destination'
    """
    from dataclasses import asdict
    from datetime import datetime

    from beige.auditlog import decode_line, files, lines
    from beige.cli.audit_query import moment
    from beige.cli.calls import check_agent
    from beige.cli.egress_view import destinations
    from beige.cli.terminal import emit, table

    home = Home.find()
    check_agent(home, agent)
    read = (record for path in files(home.audit_log) for line in lines(path) if (record := decode_line(line)))
    found = destinations(read, agent, moment(since, datetime.now().astimezone()))
    found = [one for one in found if one.denied or not denied]
    if json_output:
        emit([asdict(one) for one in found])
        return
    rows = [["DESTINATION", "ALLOWED", "DENIED", "FAILED", "SENT", "RECEIVED", "RULE", "LAST"]]
    rows += [
        [one.destination, str(one.allowed), str(one.denied), str(one.failed), str(one.sent_bytes),
         str(one.received_bytes), one.rule, one.last] for one in found
    ]  # fmt: skip
    print(table(rows))
