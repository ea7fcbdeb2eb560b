"""`beige budget`: what the agents' models used, what is reserved by calls under way, and what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from beige.paths import Home

if TYPE_CHECKING:
    from beige.messages.policy import BudgetLine, BudgetReport

BUDGET_S = 10.0
NAMES = {"session": "session", "day": "today", "total": "total", "house": "today"}


def budget(
    agent: Annotated[str, typer.Argument(help="One agent; left out: all of them.")] = "",
    session: Annotated[str, typer.Option(help="Also this session, even if sessions have no limit.")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the budgets: what was used, what calls under way have reserved, what is left, and when a new
    day begins. Accounts without a limit are shown too. Exit code 1 if a limit is used up.

    \b
    Examples:
      beige budget
      beige budget travel --session s1
      beige budget --json | jq '.accounts[] | select(.scope == "day") | [.agent, .usd.used]'
    """
    from beige.cli.calls import check_agent, run
    from beige.cli.terminal import emit
    from beige.errors import Malformed

    home = Home.find()
    if agent:
        check_agent(home, agent)
    elif session:
        raise Malformed("--session needs an agent: beige budget AGENT --session SESSION")
    report = run(_ask(home, agent, session))
    if json_output:
        emit({"accounts": [as_json(line) for line in report.lines], "unpriced": report.unpriced})
    else:
        print(render(report))
    if any(used_up(line) for line in report.lines):
        raise typer.Exit(1)


async def _ask(home: Home, agent: str, session: str) -> BudgetReport:
    from beige.cli.calls import connected
    from beige.messages.base import AgentRef

    async with connected(home) as bus:
        report: BudgetReport = await bus.call(
            "policy.budget", AgentRef(), agent=agent, session=session, ttl_s=BUDGET_S
        )
        return report


def used_up(line: BudgetLine) -> bool:
    pairs = ((line.limit_tokens, line.used_tokens), (line.limit_nano, line.used_nano))
    return any(limit is not None and used >= limit for limit, used in pairs)


def as_json(line: BudgetLine) -> dict[str, Any]:
    from beige import money

    return {
        "scope": line.scope,
        "agent": line.agent or None,
        "session": line.session or None,
        "tokens": _numbers(line.used_tokens, line.reserved_tokens, line.limit_tokens),
        "usd": {
            name: money.usd(nano)
            for name, nano in _numbers(line.used_nano, line.reserved_nano, line.limit_nano).items()
        },
        "soft": line.soft,
        "resets": line.resets or None,
    }


def _numbers(used: int, reserved: int, limit: int | None) -> dict[str, int | None]:
    left = None if limit is None else max(0, limit - used - reserved)
    return {"used": used, "reserved": reserved, "limit": limit, "left": left}


def render(report: BudgetReport) -> str:
    from beige import money
    from beige.cli.terminal import safe, table

    rows = [["AGENT", "BUDGET", "USED", "RESERVED", "LIMIT", "LEFT", "NEW AT"]]
    for line in report.lines:
        whose = line.agent or "(all)"
        name = f"session {line.session}" if line.session else NAMES[line.scope]
        new = line.resets or "never"
        tokens = _numbers(line.used_tokens, line.reserved_tokens, line.limit_tokens)
        rows.append([whose, name, *(_cell(number, "{:,} tokens") for number in tokens.values()), new])
        nano = _numbers(line.used_nano, line.reserved_nano, line.limit_nano)
        if any(nano.values()):
            cells = ["-" if n is None else money.shown(n) for n in nano.values()]
            rows.append(["", "", *cells, ""])
    text = table(rows)
    if report.unpriced:
        text += safe(f"\n\nWithout a price, counted in tokens alone: {', '.join(report.unpriced)}")
    return text


def _cell(number: int | None, form: str) -> str:
    return "-" if number is None else form.format(number)
