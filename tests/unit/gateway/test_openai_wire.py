"""What a turn's events and its result become in OpenAI's words."""

import json

import msgspec
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from beige.errors import Cancelled, NotFound, PeerLost, Unavailable
from beige.messages.llm import PromptEvent, PromptResult
from services.gateway.errors import unauthorized
from services.gateway.jobs import Event
from services.gateway.openai.chat import Completion
from services.gateway.openai.errors import Refused, encoded, headers_of
from services.gateway.openai.requests import Asked, Said
from services.gateway.openai.responses import Reply
from services.gateway.openai.wire import Text

USAGE = {"input_tokens": 10, "cache_read_tokens": 200, "cache_write_tokens": 30, "output_tokens": 7,
         "reasoning_tokens": 5}  # fmt: skip
ASKED = Asked("travel", "", (Said("user", "go"),))


def result(stop="end_turn", **more):
    return PromptResult("s", "the answer", stop, "anthropic/m", **more)


def events(*given):
    return [
        Event(number, kind, msgspec.json.encode(PromptEvent(kind=kind, text=text)))
        for number, (kind, text) in enumerate(given, 1)
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([("accepted", ""), ("text_delta", "one "), ("text_delta", "two")], "one two"),
        (
            [("text_delta", "one"), ("message_end", ""), ("tool_start", ""), ("text_delta", "two")],
            "one\n\ntwo",
        ),
        ([("message_end", ""), ("text_delta", "one"), ("message_end", "")], "one"),
        ([("text_delta", "one"), ("model_fallback", "x"), ("text_delta", "anew")], "one\n\nanew"),
        ([("thinking_delta", "hm"), ("tool_output", "secret"), ("notice", "n")], ""),
    ],
    ids=["pieces", "messages", "silent tools", "fallback", "not said"],
)
def test_what_the_agent_says_is_one_text(given, text):
    whole = Text()
    assert "".join(whole.add([event]) for event in events(*given)) == text
    assert str(whole) == text
    at_once = Text()
    assert at_once.add(events(*given)) == text


def test_usage_is_of_all_input_with_its_parts():
    chat = ChatCompletion.model_validate_json(Completion("travel").whole(result(usage=USAGE)))
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens) == (240, 7, 247)
    assert chat.usage.prompt_tokens_details.cached_tokens == 200
    assert chat.usage.completion_tokens_details.reasoning_tokens == 5
    reply = Response.model_validate_json(Reply(ASKED).whole(result(usage=USAGE)))
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (240, 7, 247)
    assert reply.usage.input_tokens_details.cached_tokens == 200
    assert reply.usage.input_tokens_details.cache_write_tokens == 30


@pytest.mark.parametrize(
    ("stop", "finish", "status", "reason"),
    [
        ("end_turn", "stop", "completed", None),
        ("max_tokens", "length", "incomplete", "max_output_tokens"),
        ("max_turns", "length", "incomplete", "max_output_tokens"),
        ("context_full", "length", "incomplete", "max_output_tokens"),
        ("refusal", "content_filter", "incomplete", "content_filter"),
    ],
)
def test_how_a_turn_ended_is_told(stop, finish, status, reason):
    chat = ChatCompletion.model_validate_json(Completion("travel").whole(result(stop)))
    assert chat.choices[0].finish_reason == finish
    reply = Response.model_validate_json(Reply(ASKED).whole(result(stop)))
    assert reply.status == status
    assert (reply.incomplete_details and reply.incomplete_details.reason) == reason


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (Refused("no", "n"), "invalid_request_error", "n", "invalid_value"),
        (NotFound("no"), "not_found_error", None, "not_found"),
        (unauthorized("no"), "authentication_error", None, "unauthorized"),
        (Unavailable("no"), "server_error", None, "unavailable"),
    ],
)
def test_errors_have_openais_shape(error, kind, param, code):
    assert json.loads(encoded(error))["error"] == {
        "message": "no",
        "type": kind,
        "param": param,
        "code": code,
    }


@pytest.mark.parametrize(
    ("error", "told"),
    [(PeerLost("x"), "false"), (Cancelled("x"), "false"), (Unavailable("x"), None), (NotFound("x"), None)],
)
def test_only_what_was_not_done_may_be_asked_for_again(error, told):
    assert headers_of(error).get("x-should-retry") == told
