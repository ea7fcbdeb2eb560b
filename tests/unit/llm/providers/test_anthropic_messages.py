"""The real SDK against the simulator."""

import pytest

from services.llm.conversation import Assistant, Image, Prompt, Text, Thinking, ToolCall, ToolResult
from services.llm.events import ThinkingDelta, ToolCallDelta
from services.llm.providers.anthropic_messages import AnthropicMessages, thinks_adaptively
from services.llm.providers.failures import ModelError
from tests.simulator.replies import Fault, Refusal, Silence, Think, Tool, reply
from tests.unit.llm.providers.asking import HELLO, answered, request, text_of

KEY = "sk-ant-api03-0123456789abcdefghij"


def stream(simulator, *, model="claude-3-5-sonnet-20241022", timeout_s=30.0, **options):
    provider = AnthropicMessages("anthropic", api_key=KEY, base_url=simulator.url, timeout_s=timeout_s,
                                 headers={"x-team": "blue"})  # fmt: skip
    return answered(provider, request(model, **options))


def test_the_request_is_what_was_asked_for(simulator):
    simulator.answer(reply("ok"))
    stream(simulator)
    got = simulator.requests[0]
    assert got.headers["x-api-key"] == KEY
    assert got.headers["x-team"] == "blue"
    body = got.body
    assert body["stream"] is True and body["max_tokens"] == 8192 and "thinking" not in body
    assert body["system"][0]["text"] == "be brief"
    assert [tool["name"] for tool in body["tools"]] == ["read", "write", "patch", "exec"]
    assert body["tools"][3]["input_schema"]["required"] == ["command"]


def test_a_tool_calls_arguments_are_put_together(simulator):
    args = {"command": 'echo "ünï\\n"', "timeout_s": 2.5}
    simulator.answer(reply("I run it.", Tool("exec", args, id="toolu_9", pieces=9)))
    events = stream(simulator)
    assert [type(event) for event in events].count(ToolCallDelta) == 10
    message = events[-1].message
    assert message.content == [Text("I run it."), ToolCall("toolu_9", "exec", args)]
    assert message.stop_reason == "tool_use"


def test_several_calls_in_one_answer_keep_their_order(simulator):
    simulator.answer(reply(Tool("read", {"path": "a"}, id="t1"), Tool("exec", {"command": "b"}, id="t2")))
    assert [call.id for call in stream(simulator)[-1].message.tool_calls] == ["t1", "t2"]


def test_a_call_without_arguments_has_none(simulator):
    simulator.answer(reply(Tool("read", raw="")))
    assert stream(simulator)[-1].message.content == [ToolCall("toolu_01", "read", {})]


def test_arguments_cut_at_the_token_limit_are_kept_as_invalid(simulator):
    simulator.answer(reply(Tool("write", raw='{"path": "a", "content": "so far'), stop="max_tokens"))
    message = stream(simulator)[-1].message
    assert message.content == [ToolCall("toolu_01", "write", invalid='{"path": "a", "content": "so far')]
    assert message.stop_reason == "max_tokens"


def test_results_and_images_go_back(simulator):
    simulator.answer(reply("a red dot"))
    conversation = (
        Prompt(text="what is in a.png?"),
        Assistant(
            model="anthropic/x",
            content=[ToolCall("t:1", "read", {"path": "a.png"}), ToolCall("t:2", "exec", {"command": "ls"})],
            stop_reason="tool_use",
        ),
        ToolResult(tool_id="t:1", tool="read", content=[Text("image"), Image("image/png", b"png")]),
        ToolResult(tool_id="t:2", tool="exec", content=[Text("exit code 1")], is_error=True),
    )
    stream(simulator, messages=conversation)
    assert simulator.problems == []
    first, second = simulator.requests[0].body["messages"][2]["content"]
    assert first["tool_use_id"] == "t_1" and first["is_error"] is False
    assert first["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    assert second["is_error"] is True


def test_thoughts_are_streamed_and_go_back_signed_to_the_same_model_only(simulator):
    simulator.answer(
        reply(Think("let me see", "c2ln"), Tool("exec", {"command": "ls"})), reply("done"), reply("done")
    )
    events = stream(simulator, thinking_level="medium", model="claude-haiku-4-5")
    assert "".join(event.text for event in events if isinstance(event, ThinkingDelta)) == "let me see"
    message = events[-1].message
    assert message.content[0] == Thinking("let me see", "c2ln")
    conversation = (*HELLO, message, ToolResult(tool_id="toolu_01", tool="exec", content=[Text("x")]))
    stream(simulator, messages=conversation, model="claude-haiku-4-5")
    stream(simulator, messages=conversation, model="claude-opus-4-1")
    own, other = (request.body["messages"][1]["content"] for request in simulator.requests[1:])
    assert own[0] == {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}
    assert [block["type"] for block in other] == ["tool_use"]


def results(*ids):
    call = Assistant(model="x/y", content=[ToolCall(id, "exec", {"command": "ls"}) for id in ids],
                     stop_reason="tool_use")  # fmt: skip
    return call, *[ToolResult(tool_id=id, tool="exec", content=[Text(id)]) for id in ids]


def test_tools_system_and_the_last_two_user_messages_are_marked_for_the_prompt_cache(simulator):
    stream(simulator, messages=(*HELLO, *results("a", "b"), *results("c"), *results("d", "e")))
    body = simulator.requests[0].body
    assert [tool["name"] for tool in body["tools"] if "cache_control" in tool] == ["exec"]
    assert body["system"][0]["cache_control"] == {"type": "ephemeral"}
    blocks = [block for message in body["messages"] for block in message["content"]]
    assert [block["tool_use_id"] for block in blocks if "cache_control" in block] == ["c", "e"]
    assert simulator.problems == []


def test_a_first_prompt_has_its_mark_and_no_more_than_there_are_places(simulator):
    stream(simulator)
    body = simulator.requests[0].body
    assert body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}
    assert str(body).count("cache_control") == 3


def budget(tokens, max_tokens):
    return {"thinking": {"type": "enabled", "budget_tokens": tokens}, "max_tokens": max_tokens}


def effort(level, max_tokens):
    thinking = {"type": "adaptive", "display": "summarized"}
    return {"thinking": thinking, "output_config": {"effort": level}, "max_tokens": max_tokens}


@pytest.mark.parametrize(
    ("model", "level", "max_tokens", "sent"),
    [
        ("claude-haiku-4-5", "off", None, {"max_tokens": 16384}),
        ("claude-haiku-4-5", "minimal", None, budget(1024, 17408)),
        ("claude-haiku-4-5", "high", None, budget(16384, 32768)),
        ("claude-haiku-4-5", "high", 4000, budget(2000, 4000)),
        ("claude-haiku-4-5", "high", 1500, {"max_tokens": 1500}),
        ("claude-sonnet-4-6", "high", None, effort("high", 16384)),
        ("claude-opus-4-7", "minimal", 500, effort("low", 500)),
        ("glm-5", "low", None, budget(2048, 18432)),
    ],
)
def test_the_thinking_level_is_said_as_the_model_understands_it(simulator, model, level, max_tokens, sent):
    simulator.answer(reply("ok"))
    stream(simulator, model=model, thinking_level=level, max_tokens=max_tokens)
    body = simulator.requests[0].body
    assert {name: body.get(name) for name in sent} == sent
    assert ("thinking" in body) == ("thinking" in sent)


@pytest.mark.parametrize(
    ("model", "adaptive"),
    [
        ("claude-sonnet-4-6", True),
        ("claude-opus-4-7-20260401", True),
        ("claude-sonnet-5", True),
        ("claude-haiku-5-5", True),
        ("claude-mythos-preview", True),
        ("anthropic.claude-opus-4-6-v1", True),
        ("claude-haiku-4-5", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-opus-4-1-20250805", False),
        ("claude-3-7-sonnet-latest", False),
        ("kimi-k2", False),
    ],
)
def test_which_models_choose_their_thinking_themselves(model, adaptive):
    assert thinks_adaptively(model) is adaptive


ERRORS = {
    "429": (Refusal(429, "rate_limit_error", "slow down", headers={"retry-after": "7"}), "rate_limited"),
    "529": (Refusal(529, "overloaded_error", "Overloaded"), "overloaded"),
    "401": (Refusal(401, "authentication_error", f"invalid x-api-key {KEY}"), "auth"),
    "400": (Refusal(400, "invalid_request_error", f"the header {KEY} is odd"), "bad_request"),
    "too long": (
        Refusal(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
        "context_too_long",
    ),
    "html 502": (Refusal(502, body="<html>bad gateway</html>", content_type="text/html"), "overloaded"),
    "html 200": (Refusal(200, body="<html>login</html>", content_type="text/html"), "bad_response"),
    "json instead of a stream": (Refusal(200, body='{"type": "message"}'), "bad_response"),
    "cut before the first event": (reply("hello", fault=Fault("cut", 0)), "connection"),
    "cut in the text": (reply("hello", fault=Fault("cut", 4)), "stream_cut"),
    "cut in a call": (reply(Tool("exec", {"command": "ls"}), fault=Fault("cut", 5)), "stream_cut"),
    "ends too early": (reply("hello", fault=Fault("end", 4)), "stream_cut"),
    "ends before it began": (reply("hello", fault=Fault("end", 0)), "bad_response"),
    "malformed": (reply("hello", fault=Fault("malformed", 4)), "bad_response"),
    "overloaded in the stream": (reply("hello", fault=Fault("error_event", 4)), "overloaded"),
    "nothing ever comes": (Silence(), "timeout"),
    "hangs in the text": (reply("hello", fault=Fault("hang", 4)), "timeout"),
}


@pytest.mark.parametrize(("answer", "kind"), ERRORS.values(), ids=ERRORS.keys())
def test_each_failure_has_its_kind_and_never_holds_the_key(simulator, answer, kind):
    simulator.answer(answer)
    with pytest.raises(ModelError) as raised:
        stream(simulator, timeout_s=0.5 if kind == "timeout" else 30.0)
    error = raised.value
    assert error.kind == kind
    assert str(error).startswith("anthropic/claude-3-5-sonnet-20241022: ")
    assert KEY not in str(error) and KEY not in repr(error)
    assert len(simulator.requests) == 1, "retrying is not the provider's business"


def test_retry_after_reaches_the_caller(simulator):
    simulator.answer(Refusal(429, "rate_limit_error", headers={"retry-after": "7"}))
    with pytest.raises(ModelError) as raised:
        stream(simulator)
    assert (raised.value.retry_after_s, raised.value.status) == (7.0, 429)


def test_no_server_is_a_connection_error(simulator):
    class Gone:
        url = "http://127.0.0.1:9"

    with pytest.raises(ModelError) as raised:
        stream(Gone)
    assert raised.value.kind == "connection"


def test_the_environment_moves_neither_the_key_nor_the_url(simulator, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/evil")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "other")
    simulator.answer(reply("ok"))
    stream(simulator)
    assert "other" not in str(simulator.requests[0].headers)


def test_a_base_url_with_v1_works_too(simulator):
    class WithVersion:
        url = simulator.url + "/v1/"

    simulator.answer(reply("ok"))
    assert text_of(stream(WithVersion)) == "ok"
