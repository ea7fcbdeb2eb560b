"""Decides whether the budgets of a configuration can be kept: a limit in money needs prices.

Works on plain values, as `checks` does: what has the wrong shape is `validation`'s to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beige.config.problems import Location, Problem

SCOPES = ("session", "day", "total")


def check(raw: Mapping[str, Any]) -> list[Problem]:
    agents = _object(raw.get("agents"))
    problems: list[Problem] = []
    for name, agent in agents.items():
        at = ("agents", name, "budget")
        problems += _check_budget(at, _object(agent).get("budget"), [agent], raw)
    return problems + list(_check_budget(("budget",), raw.get("budget"), list(agents.values()), raw))


def _check_budget(at: Location, budget: Any, agents: list[Any], raw: Mapping[str, Any]) -> Iterator[Problem]:
    for scope in SCOPES:
        limit = _object(budget).get(scope)
        if not isinstance(limit, dict):
            continue
        if limit.get("tokens") is None and limit.get("usd") is None:
            yield Problem((*at, scope), "limits nothing", "write tokens, usd, or both")
        if limit.get("usd") is not None:
            yield from _unpriced((*at, scope, "usd"), agents, raw)


def _unpriced(at: Location, agents: list[Any], raw: Mapping[str, Any]) -> Iterator[Problem]:
    """A call without a price would be counted as free, and the limit would never be reached."""
    providers = _object(_object(raw.get("llm")).get("providers"))
    named = dict.fromkeys(key for agent in agents for key in _models(_object(agent)))
    for provider, model in named:
        settings = _object(providers.get(provider))
        known = _object(_object(settings.get("models")).get(model))
        if provider in providers and settings.get("api") != "scripted" and known.get("price") is None:
            yield Problem(
                at,
                f"is a limit in money, but {provider}/{model} has no price",
                f'write llm.providers.{provider}.models["{model}"].price: {{ input, output }}, in US dollars '
                "per million tokens (0 for a model of your own), or limit tokens",
            )


def _models(agent: dict[str, Any]) -> Iterator[tuple[str, str]]:
    fallbacks = agent.get("fallbackModels")
    for ref in (agent.get("model"), *(fallbacks if isinstance(fallbacks, list) else ())):
        provider, model = _object(ref).get("provider"), _object(ref).get("model")
        if isinstance(provider, str) and isinstance(model, str):
            yield provider, model


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
