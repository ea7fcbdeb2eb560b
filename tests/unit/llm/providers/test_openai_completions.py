"""The real SDK against the simulator, as OpenAI speaks and as compatible servers bend it."""

import pytest

from services.llm.conversation import Assistant, Image, Prompt, Text, Thinking, ToolCall, ToolResult
from services.llm.events import ThinkingDelta, ToolCallDelta
from services.llm.providers.failures import ModelError
from services.llm.providers.openai_completions import OpenAICompletions, encode_request
from tests.simulator.replies import Fault, Refusal, Silence, Think, Tool, reply
from tests.unit.llm.providers.asking import HELLO, KEY, answered, request, text_of


def stream(simulator, *, api_key=KEY, timeout_s=30.0, **options):
    url = f"{simulator.url}/v1"
    provider = OpenAICompletions("zai", api_key=api_key, base_url=url, timeout_s=timeout_s)
    return answered(provider, request("glm-5", **options))


def test_the_request_is_what_was_asked_for(simulator):
    simulator.answer(reply("ok"))
    stream(simulator, thinking_level="low", max_tokens=77)
    got = simulator.requests[0]
    assert got.headers["authorization"] == f"Bearer {KEY}"
    body = got.body
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert body["reasoning_effort"] == "low" and body["max_tokens"] == 77
    assert [tool["function"]["name"] for tool in body["tools"]] == ["read", "write", "patch", "exec"]


def test_only_openais_own_server_gets_the_new_name_of_max_tokens():
    sent = encode_request(request(max_tokens=5), own=True)
    assert sent["max_completion_tokens"] == 5 and "extra_body" not in sent


VARIANTS = [
    frozenset(),
    frozenset({"null_content"}),
    frozenset({"empty_choices", "keep_alive", "no_done"}),
    frozenset({"whole_args"}),
    frozenset({"object_args"}),
    frozenset({"whole_args", "same_index"}),
    frozenset({"whole_args", "no_index"}),
    frozenset({"no_index"}),
    frozenset({"same_index"}),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(sorted(variant)) or "plain")
@pytest.mark.parametrize("usage", [True, False], ids=["usage", "no usage"])
def test_parallel_calls_are_put_together_however_they_come(simulator, variant, usage):
    one, two = {"command": 'echo "ü\\n"', "timeout_s": 2}, {"path": "b"}
    answer = reply("Both.", Tool("exec", one, id="c1", pieces=7), Tool("read", two, id="c2"),
                   variant=variant, usage=usage)  # fmt: skip
    simulator.answer(answer)
    events = stream(simulator)
    message = events[-1].message
    assert message.content == [Text("Both."), ToolCall("c1", "exec", one), ToolCall("c2", "read", two)]
    assert message.stop_reason == "tool_use"
    assert bool(message.usage) == usage
    assert any(isinstance(event, ToolCallDelta) for event in events)


def test_a_call_without_an_id_gets_one(simulator):
    simulator.answer(reply(Tool("exec", {"command": "ls"}, id="")))
    (call,) = stream(simulator)[-1].message.tool_calls
    assert call.id.startswith("call_") and call.args == {"command": "ls"}


def test_arguments_that_are_no_json_are_kept_as_invalid(simulator):
    simulator.answer(reply(Tool("exec", raw='{"command": "l'), stop="length"))
    message = stream(simulator)[-1].message
    assert message.content == [ToolCall("toolu_01", "exec", invalid='{"command": "l')]
    assert message.stop_reason == "max_tokens"


def test_a_lone_surrogate_does_no_harm(simulator):
    simulator.answer(reply(Tool("exec", raw='{"command": "\\ud83d"}')))
    (call,) = stream(simulator)[-1].message.tool_calls
    assert call.invalid and not call.args


def test_reasoning_is_shown_and_not_sent_back(simulator):
    simulator.answer(reply(Think("let me see"), "done"), reply("ok"))
    events = stream(simulator)
    assert "".join(event.text for event in events if isinstance(event, ThinkingDelta)) == "let me see"
    message = events[-1].message
    assert message.content == [Thinking("let me see"), Text("done")]
    stream(simulator, messages=(*HELLO, message, Prompt(text="and?")))
    assert simulator.requests[1].body["messages"][2] == {"role": "assistant", "content": "done"}


def test_a_refusal_by_filter_is_told(simulator):
    simulator.answer(reply("I can", stop="content_filter"))
    assert stream(simulator)[-1].message.stop_reason == "refusal"


def test_results_go_back_and_images_after_the_last_of_them(simulator):
    simulator.answer(reply("a red dot"))
    conversation = (
        Prompt(text="what is in a.png?"),
        Assistant(
            model="zai/glm-5",
            content=[ToolCall("c:1", "read", {"path": "a.png"}), ToolCall("c:2", "exec", {"command": "ls"})],
            stop_reason="tool_use",
        ),
        ToolResult(tool_id="c:1", tool="read", content=[Text("image"), Image("image/png", b"png")]),
        ToolResult(
            tool_id="c:2", tool="exec", content=[Text("exit code 1"), Text("stderr:\nno")], is_error=True
        ),
        Prompt(text="well?"),
    )
    stream(simulator, messages=conversation)
    assert simulator.problems == []
    asked, first, second, images, prompt = simulator.requests[0].body["messages"][2:]
    assert asked["content"] is None and asked["tool_calls"][0]["id"] == "c_1"
    assert first == {"role": "tool", "tool_call_id": "c_1", "content": "image"}
    assert second["content"] == "error: exit code 1\nstderr:\nno"
    assert images["content"][1]["image_url"] == {"url": "data:image/png;base64,cG5n"}
    assert prompt == {"role": "user", "content": "well?"}


ERRORS = {
    "429": (Refusal(429, "rate_limit_exceeded", "slow down", headers={"retry-after": "7"}), "rate_limited"),
    "529": (Refusal(529, "overloaded", "Overloaded"), "overloaded"),
    "503": (Refusal(503, body="busy", content_type="text/plain"), "overloaded"),
    "401": (Refusal(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"), "auth"),
    "400": (Refusal(400, "invalid_request_error", f"odd {KEY}"), "bad_request"),
    "too long": (Refusal(400, "context_length_exceeded", "maximum context length is 8"), "context_too_long"),
    "wrong path": (Refusal(404, "not_found", "no route"), "bad_request"),
    "html 200": (Refusal(200, body="<html>login</html>", content_type="text/html"), "bad_response"),
    "json instead of a stream": (Refusal(200, body='{"object": "chat.completion"}'), "bad_response"),
    "cut before the first event": (reply("hello", fault=Fault("cut", 0)), "connection"),
    "cut in the text": (reply("hello", fault=Fault("cut", 3)), "stream_cut"),
    "cut in a call": (reply(Tool("exec", {"command": "ls"}), fault=Fault("cut", 4)), "stream_cut"),
    "ends too early": (reply("hello", fault=Fault("end", 3)), "stream_cut"),
    "malformed": (reply("hello", fault=Fault("malformed", 3)), "bad_response"),
    "overloaded in the stream": (reply("hello", fault=Fault("error_event", 3)), "overloaded"),
    "nothing ever comes": (Silence(), "timeout"),
    "hangs in the text": (reply("hello", fault=Fault("hang", 3)), "timeout"),
}


@pytest.mark.parametrize(("answer", "kind"), ERRORS.values(), ids=ERRORS.keys())
def test_each_failure_has_its_kind_and_never_holds_the_key(simulator, answer, kind):
    simulator.answer(answer)
    with pytest.raises(ModelError) as raised:
        stream(simulator, timeout_s=0.5 if kind == "timeout" else 30.0)
    error = raised.value
    assert error.kind == kind
    assert str(error).startswith("zai/glm-5: ")
    assert KEY not in str(error) and KEY not in repr(error)
    assert len(simulator.requests) == 1, "retrying is not the provider's business"


def test_a_server_without_keys_needs_none(simulator, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-this-server")
    simulator.answer(reply("ok"))
    assert text_of(stream(simulator, api_key=None)) == "ok"
    assert "sk-not" not in str(simulator.requests[0].headers)
