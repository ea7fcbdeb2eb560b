"""Decides how budgets are put into words: refusals and warnings, for the people who read them. Pure."""

from __future__ import annotations

from beige import money
from services.policy.budget import Account, Amount, Refuse, Standing, amount_of, resets


def denial(refusal: Refuse) -> str:
    """Which limit, what is used of it, what was needed, and what to do."""
    one, account = refusal.standing, refusal.standing.account
    amounts = (amount_of(one.limit), one.used, refusal.needed)
    limit, used, needed = (_amounts(amount, one) for amount in amounts)
    return (
        f"Budget exceeded: {_whose(account)} may use {limit} and has used {used}; this call needs {needed} "
        f"or more; {_way_out(account)}"
    )


def warning(standings: list[Standing]) -> str:
    """About the soft limits that are reached, "" if none is."""
    reached = [standing for standing in standings if _is_soft(standing)]
    return "; ".join(
        f"budget: {_whose(one.account)} has used {_amounts(one.used, one)} of "
        f"{_amounts(amount_of(one.limit), one)}; {_way_out(one.account)}"
        for one in reached
    )


def _is_soft(one: Standing) -> bool:
    pairs = ((one.used.tokens, one.limit.tokens), (one.used.nano, one.limit.nano))
    return one.limit.soft < 1 and any(limit and used >= limit * one.limit.soft for used, limit in pairs)


def _amounts(amount: Amount, standing: Standing) -> str:
    """In the units of the limit."""
    parts = [f"{amount.tokens:,} tokens"] if standing.limit.tokens is not None else []
    parts += [money.shown(amount.nano)] if standing.limit.nano is not None else []
    return " and ".join(parts)


def _whose(account: Account) -> str:
    match account.scope:
        case "session":
            return f"this session of agent {account.agent!r}"
        case "day":
            return f"agent {account.agent!r} on {account.day}"
        case "total":
            return f"agent {account.agent!r} in total"
        case "house":
            return f"all agents together on {account.day}"


def _way_out(account: Account) -> str:
    if account.day:
        return f"a new day begins at {resets(account)}"
    if account.scope == "session":
        return "a new session begins with nothing used"
    return f"it is never reset: agents.{account.agent}.budget.total is in the configuration"
