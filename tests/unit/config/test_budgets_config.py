"""Budgets that could not be kept are refused, with the place, the reason and the way out."""

from __future__ import annotations

from pathlib import Path

import json5
import pytest

from beige.config import load
from beige.errors import ConfigError
from beige.paths import Home

BASE = """{ llm: { providers: {
  zai: { api: "openai-completions", baseUrl: "http://z",
         models: { "glm-5": { price: { input: 1, output: 2 } } } },
  local: { api: "openai-completions", baseUrl: "http://l" },
  demo: { api: "scripted", script: "s.json5" } } },
  agents: {
    paid: { model: { provider: "zai", model: "glm-5" }, tools: [], sandbox: { image: "i" } },
    mixed: { model: { provider: "zai", model: "glm-5" }, tools: [], sandbox: { image: "i" },
             fallbackModels: [{ provider: "local", model: "qwen/3" }] },
    script: { model: { provider: "demo", model: "m" }, tools: [], sandbox: { image: "i" } },
  } }"""
NO_PRICE = (
    "is a limit in money, but local/qwen/3 has no price; write "
    'llm.providers.local.models["qwen/3"].price: { input, output }, in US dollars per million tokens '
    "(0 for a model of your own), or limit tokens"
)


def loaded(tmp_path: Path, agent: str, budget: object, house: object = None) -> list[str]:
    """The problems of a configuration in which `agent` has `budget`."""
    raw = json5.loads(BASE)
    raw["agents"] = {agent: raw["agents"][agent]}
    if budget is not None:
        raw["agents"][agent]["budget"] = budget
    if house is not None:
        raw["budget"] = house
    home = Home(tmp_path)
    (tmp_path / "s.json5").write_text("[]")
    home.config.write_text(json5.dumps(raw))
    try:
        load(home)
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize("scope", ["session", "day", "total"])
def test_a_limit_in_money_needs_a_price_for_each_model(tmp_path: Path, scope: str) -> None:
    budget = {scope: {"usd": 1.5}}
    assert loaded(tmp_path, "paid", budget) == loaded(tmp_path, "script", budget) == []
    assert loaded(tmp_path, "mixed", budget) == [f"agents.mixed.budget.{scope}.usd: {NO_PRICE}"]
    assert loaded(tmp_path, "mixed", {scope: {"tokens": 1000}}) == []


def test_the_limit_of_all_agents_needs_a_price_for_each_model_of_each(tmp_path: Path) -> None:
    assert loaded(tmp_path, "mixed", None, {"day": {"usd": 5}}) == [f"budget.day.usd: {NO_PRICE}"]
    assert loaded(tmp_path, "paid", None, {"day": {"usd": 5}}) == []


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ({"day": {}}, "agents.paid.budget.day: limits nothing; write tokens, usd, or both"),
        ({"day": {"soft": 0.5}}, "agents.paid.budget.day: limits nothing; write tokens, usd, or both"),
        ({"day": {"usd": -1}}, "agents.paid.budget.day.usd: should be greater than or equal to 0.000001"),
        ({"day": {"usd": "1"}}, "agents.paid.budget.day.usd: must be a number, not a string"),
        ({"day": {"tokens": 0}}, "agents.paid.budget.day.tokens: should be greater than or equal to 1"),
        (
            {"day": {"tokens": 1, "soft": 80}},
            "agents.paid.budget.day.soft: should be less than or equal to 1",
        ),
        ({"week": {"tokens": 1}}, "agents.paid.budget.week: unknown key; allowed: day, session, total"),
    ],
    ids=str,
)
def test_what_a_budget_may_not_say(tmp_path: Path, budget: object, problem: str) -> None:
    assert loaded(tmp_path, "paid", budget) == [problem]
