"""Tokens nobody counted: rather too many than too few, never a provider's nonsense, never free."""

import pytest

from beige.messages.policy import LeaseReport, Usage
from services.llm.conversation import Assistant, Image, Prompt, Text, Thinking, ToolCall, ToolResult
from services.llm.events import TextDelta, ThinkingDelta, ToolCallDelta
from services.llm.models import estimate
from services.llm.providers.failures import ModelError

BARE = estimate.request_tokens("", [])


def answer(usage=None, *content):
    return Assistant(model="p/m", content=list(content), stop_reason="end_turn", usage=usage or {})


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (Prompt(text="x" * 300), 100),
        (Prompt(text="字" * 300), 300),
        (Prompt(text="\udc80" * 300), 100),
        (answer({}, Text("x" * 30), Thinking("y" * 30, signature="z" * 30)), 30),
        (answer({}, ToolCall("id", "exec", {"command": "x" * 3000})), 1000),
        (ToolResult(tool_id="i", tool="read", content=[Image("image/png", b"x")]), estimate.IMAGE_TOKENS),
        (ToolResult(tool_id="i", tool="read", content=[Text("x" * 30_000)]), 10_000),
    ],
    ids=["ascii", "chinese", "broken", "thinking", "call", "image", "result"],
)
def test_a_request_is_estimated_from_its_bytes(message, tokens):
    found = estimate.request_tokens("", [message]) - BARE
    assert tokens - 1 <= found <= tokens + 50


def test_the_tools_and_the_system_prompt_count_and_nothing_exceeds_what_policy_takes():
    assert BARE > 200
    assert estimate.request_tokens("x" * 3000, []) == BARE + 1000
    assert estimate.request_tokens("x" * 40_000_000, []) == estimate.MOST_TOKENS


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"input_tokens": 9, "output_tokens": 2, "reasoning_tokens": 1}, Usage(9, 2)),
        ({"cache_read_tokens": 4, "cache_write_tokens": 5}, Usage(0, 0, 4, 5)),
        ({}, Usage(700, 10)),
        ({"input_tokens": 0}, Usage(700, 10)),
        ({"reasoning_tokens": 5}, Usage(700, 10)),
        ({"input_tokens": 10_000_001}, Usage(700, 10)),
        ({"input_tokens": -5, "output_tokens": 9}, Usage(700, 10)),
    ],
    ids=str,
)
def test_an_answer_is_reported_as_counted_or_else_as_estimated(usage, told):
    assert estimate.answered(answer(usage, Text("x" * 30)), 700) == LeaseReport("answered", usage=told)


@pytest.mark.parametrize(
    ("kind", "status", "counted", "written", "told"),
    [
        ("rate_limited", 429, {}, 0, None),
        ("overloaded", 529, {}, 0, None),
        ("connection", None, {}, 0, None),
        ("overloaded", None, {}, 30, Usage(700, 10)),
        ("timeout", None, {}, 0, Usage(700, 0)),
        ("stream_cut", None, {}, 30, Usage(700, 10)),
        ("stream_cut", None, {"input_tokens": 9}, 30, Usage(9, 0)),
        ("bad_response", None, {}, 0, Usage(700, 0)),
    ],
)
def test_a_failure_costs_what_the_provider_may_have_done(kind, status, counted, written, told):
    error = ModelError(kind, "x", status=status, retry_after_s=3.0)
    error.usage = counted
    assert estimate.failed(error, 700, written) == LeaseReport("failed", kind, status, 3.0, told)


def test_what_streams_is_measured():
    events = [TextDelta("字字"), ThinkingDelta("abc"), ToolCallDelta("exec")]
    assert [estimate.event_size(event) for event in events] == [6, 3, estimate.BYTES_PER_TOKEN]
