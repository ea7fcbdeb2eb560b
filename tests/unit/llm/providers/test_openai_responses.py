"""The real SDK against the simulator, as OpenAI speaks and as compatible servers bend it."""

import pytest

from services.llm.conversation import Assistant, Image, Prompt, Text, Thinking, ToolCall, ToolResult
from services.llm.events import ThinkingDelta, ToolCallDelta
from services.llm.providers.failures import ModelError
from services.llm.providers.openai_responses import OpenAIResponses
from tests.simulator.replies import Fault, Refusal, Say, Silence, Think, Tool, reply
from tests.unit.llm.providers.asking import HELLO, KEY, answered, request, text_of


def stream(simulator, *, model="gpt-5", timeout_s=30.0, **options):
    provider = OpenAIResponses("openai", api_key=KEY, base_url=f"{simulator.url}/v1", timeout_s=timeout_s)
    return answered(provider, request(model, **options))


def test_the_request_is_what_was_asked_for_and_nothing_is_kept_on_the_server(simulator):
    simulator.answer(reply("ok"))
    stream(simulator, max_tokens=77)
    got = simulator.requests[0]
    assert got.path == "/v1/responses" and got.headers["authorization"] == f"Bearer {KEY}"
    body = got.body
    assert body["instructions"] == "be brief" and body["max_output_tokens"] == 77
    assert body["input"] == [{"role": "user", "content": "hello"}]
    assert body["store"] is False and body["stream"] is True
    assert "previous_response_id" not in body and "reasoning" not in body and "include" not in body
    assert [(tool["name"], tool["strict"]) for tool in body["tools"]] == [
        ("read", False), ("write", False), ("patch", False), ("exec", False)
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["minimal", "low", "medium", "high"])
def test_the_thinking_level_is_an_effort_and_thoughts_are_asked_for_encrypted(simulator, level):
    simulator.answer(reply("ok"))
    stream(simulator, thinking_level=level)
    body = simulator.requests[0].body
    assert body["reasoning"] == {"effort": level, "summary": "auto"}
    assert body["include"] == ["reasoning.encrypted_content"]


VARIANTS = [
    frozenset(),
    frozenset({"bare"}),
    frozenset({"bare", "no_place"}),
    frozenset({"only_end"}),
    frozenset({"other_ids"}),
    frozenset({"no_place"}),
    frozenset({"object_args"}),
    frozenset({"keep_alive", "done"}),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(sorted(variant)) or "plain")
@pytest.mark.parametrize("usage", [True, False], ids=["usage", "no usage"])
def test_an_answer_with_thoughts_and_parallel_calls_is_put_together_however_it_comes(
    simulator, variant, usage
):
    one, two = {"command": 'echo "ü\\n"', "timeout_s": 2}, {"path": "b"}
    answer = reply(Think("let me see", "ZW5j"), "Both.", Tool("exec", one, id="c1", pieces=7),
                   Tool("read", two, id="c2"), variant=variant, usage=usage)  # fmt: skip
    simulator.answer(answer)
    events = stream(simulator)
    message = events[-1].message
    thinking = Thinking("let me see", "" if "bare" in variant else "rs_0 ZW5j")
    assert message.content == [
        thinking, Text("Both."), ToolCall("c1", "exec", one), ToolCall("c2", "read", two)
    ]  # fmt: skip
    assert (message.stop_reason, message.usage) == ("tool_use", answer.used)
    assert text_of(events) == "Both." and text_of(events, ThinkingDelta) == "let me see"
    assert any(isinstance(event, ToolCallDelta) for event in events) == ("only_end" not in variant)


def test_parts_of_a_summary_are_paragraphs(simulator):
    simulator.answer(reply(Think("first\n\nsecond", "ZW5j"), "ok"))
    events = stream(simulator)
    assert text_of(events, ThinkingDelta) == "first\n\nsecond"
    assert events[-1].message.content[0] == Thinking("first\n\nsecond", "rs_0 ZW5j")


def test_thoughts_go_back_encrypted_to_the_same_model_only(simulator):
    simulator.answer(reply(Think("let me see", "ZW5j"), Tool("exec", {"command": "ls"}, id="c1")))
    message = stream(simulator, thinking_level="low")[-1].message
    conversation = (*HELLO, message, ToolResult(tool_id="c1", tool="exec", content=[Text("x")]))
    stream(simulator, messages=conversation)
    stream(simulator, messages=conversation, model="gpt-4.1")
    own, other = (request.body["input"] for request in simulator.requests[1:])
    thought = {"type": "reasoning", "id": "rs_0", "encrypted_content": "ZW5j",
               "summary": [{"type": "summary_text", "text": "let me see"}]}  # fmt: skip
    call = {"type": "function_call", "call_id": "c1", "name": "exec", "arguments": '{"command": "ls"}'}
    result = {"type": "function_call_output", "call_id": "c1", "output": "x"}
    assert own[1:] == [thought, call, result] and other[1:] == [call, result]
    assert simulator.problems == []


FOREIGN = {
    "another API's signature": [Thinking("hm", "c2lnbmVk"), Text("hello")],
    "no signature": [Thinking("hm"), Text("hello")],
    "nothing followed": [Text("hello"), Thinking("hm", "rs_9 ZW5j")],
    "empty text": [Text(""), Thinking("hm", "rs_9 ZW5j"), Text("")],
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_thought_the_api_would_refuse_is_left_out(simulator, content):
    answered = Assistant(model="openai/gpt-5", content=content, stop_reason="max_tokens")
    stream(simulator, messages=(*HELLO, answered, Prompt(text="go on")))
    said = [item for item in simulator.requests[0].body["input"] if item.get("role") != "user"]
    assert said in ([{"role": "assistant", "content": "hello"}], [])
    assert simulator.problems == []


def test_results_and_images_go_back(simulator):
    conversation = (
        Prompt(text="what is in a.png?"),
        Assistant(
            model="zai/x",
            content=[ToolCall("t:1", "read", {"path": "a.png"}), ToolCall("t:2", "exec", {"command": "ls"})],
            stop_reason="tool_use",
        ),
        ToolResult(tool_id="t:1", tool="read", content=[Text("image"), Image("image/png", b"png")]),
        ToolResult(tool_id="t:2", tool="exec", content=[Text("exit code 1")], is_error=True),
    )
    stream(simulator, messages=conversation)
    first, second = simulator.requests[0].body["input"][3:]
    image = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,cG5n"}
    assert first == {"type": "function_call_output", "call_id": "t_1",
                     "output": [{"type": "input_text", "text": "image"}, image]}  # fmt: skip
    assert second == {"type": "function_call_output", "call_id": "t_2", "output": "error: exit code 1"}
    assert simulator.problems == []


STOPS = {
    "refusal": (reply(Say("I can't.", refusal=True)), "refusal", "I can't."),
    "token limit": (reply("so f", stop="max_output_tokens"), "max_tokens", "so f"),
    "filter": (reply("so f", stop="content_filter"), "refusal", "so f"),
    "refusal without deltas": (
        reply(Say("No.", refusal=True), variant=frozenset({"only_end"})), "refusal", "No."
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "stop", "text"), STOPS.values(), ids=STOPS.keys())
def test_why_an_answer_stopped_is_told(simulator, answer, stop, text):
    simulator.answer(answer)
    events = stream(simulator)
    assert (events[-1].message.stop_reason, text_of(events)) == (stop, text)


def test_a_call_cut_at_the_token_limit_is_kept_as_invalid(simulator):
    simulator.answer(reply(Tool("write", raw='{"path": "a'), stop="max_output_tokens"))
    message = stream(simulator)[-1].message
    assert message.content == [ToolCall("toolu_01", "write", invalid='{"path": "a')]


ERRORS = {
    "429": (Refusal(429, "rate_limit_exceeded", "Rate limit reached"), "rate_limited"),
    "no credit": (Refusal(429, "insufficient_quota", "You exceeded your current quota"), "billing"),
    "503": (Refusal(503, body="busy", content_type="text/plain"), "overloaded"),
    "401": (Refusal(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"), "auth"),
    "too long": (Refusal(400, "context_length_exceeded", "Your input exceeds the context window"),
                 "context_too_long"),
    "failed: server": (reply("so far", stop="server_error"), "overloaded"),
    "failed: limit": (reply("so far", stop="rate_limit_exceeded"), "rate_limited"),
    "failed: quota": (reply("so far", stop="insufficient_quota"), "billing"),
    "failed: too long": (reply("so far", stop="context_length_exceeded"), "context_too_long"),
    "failed: prompt": (reply("so far", stop="invalid_prompt"), "bad_request"),
    "failed: image": (reply("so far", stop="invalid_image_format"), "bad_request"),
    "error event": (reply("hello", fault=Fault("error_event", 5, "server_error", "oops")), "overloaded"),
    "error event: busy": (reply("hello", fault=Fault("error_event", 5, "is_overloaded")), "overloaded"),
    "cut before the first event": (reply("hello", fault=Fault("cut", 0)), "connection"),
    "cut in the text": (reply("hello", fault=Fault("cut", 5)), "stream_cut"),
    "cut in a call": (reply(Tool("exec", {"command": "ls"}), fault=Fault("cut", 5)), "stream_cut"),
    "ends too early": (reply("hello", fault=Fault("end", 5)), "stream_cut"),
    "ends before it began": (reply("hello", fault=Fault("end", 0)), "bad_response"),
    "malformed": (reply("hello", fault=Fault("malformed", 5)), "bad_response"),
    "html 200": (Refusal(200, body="<html>login</html>", content_type="text/html"), "bad_response"),
    "nothing ever comes": (Silence(), "timeout"),
    "hangs in the text": (reply("hello", fault=Fault("hang", 5)), "timeout"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "kind"), ERRORS.values(), ids=ERRORS.keys())
def test_each_failure_has_its_kind_and_never_holds_the_key(simulator, answer, kind):
    simulator.answer(answer)
    with pytest.raises(ModelError) as raised:
        stream(simulator, timeout_s=0.5 if kind == "timeout" else 30.0)
    error = raised.value
    assert error.kind == kind
    assert str(error).startswith("openai/gpt-5: ")
    assert KEY not in str(error) and KEY not in repr(error)
    assert len(simulator.requests) == 1, "retrying is not the provider's business"
