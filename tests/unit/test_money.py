"""What a call costs: exact sums of whole nano-dollars, whatever the price looks like as a float."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige import money
from beige.config import AgentConfig, Config, PriceConfig, prices
from beige.money import Price

MILLION = 1_000_000


def priced(**usd):
    return prices.price(PriceConfig.model_validate(usd))


@pytest.mark.parametrize(
    ("price", "usage", "nano"),
    [
        (priced(input=3, output=15), {"input_tokens": 1000, "output_tokens": 100}, 3_000_000 + 1_500_000),
        (priced(input=3, output=15), {}, 0),
        (priced(input=3, output=15), {"cache_read_tokens": 10, "cache_write_tokens": 4}, 30_000 + 15_000),
        (priced(input=3, output=15, cacheRead=0.3, cacheWrite=6), {"cache_read_tokens": 10,
                                                                  "cache_write_tokens": 4}, 3_000 + 24_000),
        (priced(input=3, output=15, cacheRead=0), {"cache_read_tokens": MILLION}, 0),
        (priced(input=0.075, output=0.3), {"input_tokens": 1, "output_tokens": 1}, 375),
        (priced(input=0.0375, output=0), {"input_tokens": 1}, 38),
        (priced(input=0, output=0), {"input_tokens": MILLION, "output_tokens": MILLION}, 0),
        (priced(input=1, output=1), {"input_tokens": 1, "reasoning_tokens": 99}, 1000),
    ],
)  # fmt: skip
def test_cost(price, usage, nano):
    assert price.cost(usage) == nano


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**7), max_size=20))
def test_a_sum_of_costs_is_exact_and_never_below_the_price(millionths, calls):
    price = priced(input=millionths / MILLION, output=0)
    spent = sum(price.cost({"input_tokens": tokens}) for tokens in calls)
    exact = Fraction(millionths * sum(calls), 1000)
    assert exact <= spent < exact + len(calls) + 1


def configured(provider):
    ref = {"provider": "p", "model": "m"}
    agent = AgentConfig.model_validate(
        {"model": ref, "fallbackModels": [{"provider": "p", "model": "n"}], "tools": [],
         "sandbox": {"image": "i"}}, strict=False,
    )  # fmt: skip
    return Config.model_validate(
        {"llm": {"providers": {"p": provider}}, "agents": {"a": agent}}, strict=False
    )


def test_only_what_the_configuration_says_has_a_price():
    config = configured(
        {"api": "openai-completions", "baseUrl": "u", "models": {"m": {"price": {"input": 1, "output": 2}}}}
    )
    assert prices.prices_of(config) == {("p", "m"): Price(MILLION, 2 * MILLION, MILLION, 1_250_000)}


def test_a_script_is_free():
    config = configured({"api": "scripted", "script": "s"})
    assert prices.prices_of(config) == {("p", "m"): Price(), ("p", "n"): Price()}


@pytest.mark.parametrize(
    ("nano", "text"),
    [(0, "$0"), (1, "<$0.0001"), (4_200_000, "$0.0042"), (1_250_000_000, "$1.25"), (10**13, "$10,000.00")],
)
def test_money_as_people_read_it(nano, text):
    assert money.shown(nano) == text


def test_an_unknown_cost_makes_the_sum_unknown():
    assert money.total(3, 4) == 7
    assert money.total(None, 4) is money.total(3, None) is None
    assert money.usd(None) is None and money.usd(1_500_000_000) == 1.5
