"""Usage means the same whatever API it came from. The real SDKs against the simulator."""

import pytest

from services.llm.providers.base import MOST_TOKENS, USAGE, all_input_usage, usage
from services.llm.providers.failures import ModelError
from tests.simulator.replies import Fault, reply
from tests.unit.llm.providers.asking import OPEN, answered

ALL = {"input_tokens": 100, "output_tokens": 60, "cache_read_tokens": 2000, "cache_write_tokens": 300,
       "reasoning_tokens": 40}  # fmt: skip
"""2,400 tokens of input, of which 100 at the plain price; 60 of output, 40 of them reasoning."""


def answer(simulator, api):
    return answered(OPEN[api](simulator.url))[-1].message


@pytest.mark.parametrize("api", OPEN)
def test_cached_input_is_never_counted_as_input_and_reasoning_is_part_of_the_output(simulator, api):
    simulator.answer(reply("ok", **ALL))
    assert answer(simulator, api).usage == ALL


@pytest.mark.parametrize("api", OPEN)
def test_what_is_not_used_is_not_listed(simulator, api):
    simulator.answer(reply("ok", input_tokens=7, output_tokens=3))
    assert answer(simulator, api).usage == {"input_tokens": 7, "output_tokens": 3}


@pytest.mark.parametrize("api", OPEN)
def test_a_server_that_counts_nothing_is_no_error(simulator, api):
    simulator.answer(reply("ok", usage=False))
    assert answer(simulator, api).usage == {}


def test_a_broken_answer_tells_what_was_counted_so_far(simulator):
    simulator.answer(reply("half an answer", input_tokens=70, fault=Fault("cut", 4)))
    with pytest.raises(ModelError) as raised:
        answer(simulator, "anthropic-messages")
    assert raised.value.usage == {"input_tokens": 70, "output_tokens": 1}


@pytest.mark.parametrize("value", [None, "12", -5, 0, True, float("nan"), float("inf"), MOST_TOKENS + 1, {}])
def test_only_positive_whole_numbers_of_a_sane_size_are_counted(value):
    assert usage(**dict.fromkeys(USAGE, value)) == {}
    assert all_input_usage(value, value, value, value, value) == {}


def test_more_cached_than_sent_lowers_nothing_else():
    assert all_input_usage(10, 500, 0, 4, 0) == {"output_tokens": 4, "cache_read_tokens": 500}
    assert all_input_usage(10, -500, 0, 4, 0) == {"input_tokens": 10, "output_tokens": 4}
