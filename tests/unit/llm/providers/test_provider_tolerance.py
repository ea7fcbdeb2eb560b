"""What servers really send, byte for byte, through the real SDKs: it is understood, or it is one named kind
of error. Never an exception of an SDK, never a hang."""

import asyncio
import json

import pytest

from services.llm.conversation import Text, Thinking, ToolCall
from services.llm.events import MessageDone
from services.llm.providers.failures import ModelError
from tests.simulator.replies import Raw
from tests.simulator.server import Simulator
from tests.unit.llm.providers.asking import KEY, OPEN, events_of, text_of

LS = '{"command": "ls"}'
BOM = b"\xef\xbb\xbf"


class Clients:
    """One simulator and one provider for each API, used over and over: a broken answer must not spoil the
    next one's connection."""

    def __init__(self, simulator, runner):
        self.simulator, self.runner = simulator, runner
        self.providers = {api: runner.run(self.open(api)) for api in OPEN}

    async def open(self, api):
        return OPEN[api](self.simulator.url)

    def ask(self, api, answer):
        """Content and stop reason; or the error's kind."""
        self.simulator.reset()
        self.simulator.answer(answer)
        try:
            events = self.runner.run(asyncio.wait_for(events_of(self.providers[api]), 30))
        except ModelError as error:
            assert str(error).startswith("p/m: ") and KEY not in str(error)
            return error.kind
        finally:
            assert len(self.simulator.requests) == 1, "the SDKs' own retries are off"
        message = events[-1].message
        assert isinstance(events[-1], MessageDone) and text_of(events) == message.text
        return message.content, message.stop_reason

    async def close(self):
        for provider in self.providers.values():
            await provider.close()


@pytest.fixture(scope="module")
def clients():
    with Simulator() as simulator, asyncio.Runner() as runner:
        clients = Clients(simulator, runner)
        yield clients
        runner.run(clients.close())


def table(rows):
    return pytest.mark.parametrize(("answer", "expected"), rows.values(), ids=rows.keys())


def same(content, expected):
    """Ids that the provider left out are made up."""
    if isinstance(expected, str):
        return content == expected
    blocks = [
        ToolCall("?", block.name, block.args, block.invalid)
        if isinstance(block, ToolCall) and block.id.startswith("call_")
        else block
        for block in content[0]
    ]
    return (blocks, content[1]) == expected


def exec_call(tool_id="c1", **options):
    return ToolCall(tool_id, "exec", **(options or {"args": {"command": "ls"}}))


# --- chat completions -------------------------------------------------------------------------------


def chat(*chunks, done=True):
    """SSE: dicts as JSON, strings as they are."""
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks]
    return Raw("".join([*lines, "data: [DONE]\n\n" if done else ""]).encode())


def delta(finish=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(arguments=LS, finish=None, **fields):
    """One piece of a tool call."""
    function = {"name": "exec", "arguments": arguments}
    piece = {"index": 0, "id": "c1", "type": "function", "function": function} | fields
    return delta(finish, tool_calls=[{k: v for k, v in piece.items() if v is not None}])


HI, STOP, CALLS = delta(content="hi"), delta("stop"), delta("tool_calls")
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
SAID, CALLED = ([Text("hi")], "end_turn"), ([exec_call()], "tool_use")
COMPLETION = json.dumps({"object": "chat.completion", "choices": [{"message": {"content": "hi"}}]})
CHAT = {
    "plain": (chat(HI, STOP, USAGE), SAID),
    "no usage": (chat(HI, STOP), SAID),
    "usage is null in each chunk": (chat(HI | {"usage": None}, STOP | {"usage": None}), SAID),
    "usage of odd types": (chat(HI, STOP, {"choices": [], "usage": {"prompt_tokens": "many"}}), SAID),
    "usage is a list": (chat(HI, STOP, {"choices": [], "usage": [1]}), SAID),
    "no role, extra fields": (chat(HI | {"x": {"y": 1}}, STOP), SAID),
    "role alone first": (chat(delta(role="assistant"), HI, STOP), SAID),
    "empty choices first": (chat({"choices": []}, HI, STOP), SAID),
    "choices null": (chat({"choices": None}, HI, STOP), SAID),
    "choices missing": (chat({"id": "x"}, HI, STOP), SAID),
    "content null": (chat(delta(content=None), HI, delta("stop", content=None)), SAID),
    "content in parts": (chat(delta(content=[{"type": "text", "text": "h"}, {"text": "i"}]), STOP), SAID),
    "content and thoughts in parts": (
        chat(delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]), HI, STOP),
        ([Thinking("hm"), Text("hi")], "end_turn"),
    ),
    "reasoning_content": (
        chat(delta(reasoning_content="hm", content=None), HI, STOP),
        ([Thinking("hm"), Text("hi")], "end_turn"),
    ),
    "reasoning": (chat(delta(reasoning="hm"), HI, STOP), ([Thinking("hm"), Text("hi")], "end_turn")),
    "delta null": (chat({"choices": [{"index": 0, "delta": None}]}, HI, STOP), SAID),
    "delta missing at the end": (chat(HI, {"choices": [{"index": 0, "finish_reason": "stop"}]}), SAID),
    "no [DONE]": (chat(HI, STOP, done=False), SAID),
    "comments": (Raw(b": OPENROUTER\n\n" + chat(HI, STOP).body.replace(b"\n\n", b"\n\n: x\n\n")), SAID),
    "CRLF": (Raw(chat(HI, STOP).body.replace(b"\n", b"\r\n")), SAID),
    "BOM": (Raw(BOM + chat(HI, STOP).body), SAID),
    "no space after data:": (Raw(chat(HI, STOP).body.replace(b"data: ", b"data:")), SAID),
    "event names": (Raw(chat(HI, STOP).body.replace(b"data: ", b"event: message\ndata: ")), SAID),
    "wrong content type": (Raw(chat(HI, STOP).body, "text/plain"), SAID),
    "finish reason told twice": (chat(HI, STOP, STOP, USAGE), SAID),
    "finish reason unknown": (chat(HI, delta("eos_token")), SAID),
    "finish reason empty": (chat(HI, delta(""), STOP), SAID),
    "finish reason in capitals": (chat(HI, delta("MAX_TOKENS")), ([Text("hi")], "max_tokens")),
    "no finish reason, but usage": (chat(HI, USAGE), SAID),
    "no finish reason at all": (chat(HI), "stream_cut"),
    "finish reason error": (chat(HI, delta("error")), "stream_cut"),
    "nothing but an end": (chat(STOP), ([], "end_turn")),
    "a giant event": (chat(delta(content="x" * 2**20), STOP), ([Text("x" * 2**20)], "end_turn")),
    "an empty stream": (Raw(b""), "bad_response"),
    "only [DONE]": (chat(), "bad_response"),
    "a JSON answer instead of a stream": (Raw(COMPLETION.encode(), "application/json"), "bad_response"),
    "a JSON error with 200": (Raw(b'{"error": {"message": "no"}}', "application/json"), "bad_response"),
    "a page": (Raw(b"<html>\n\n<body>Log in</body></html>", "text/html"), "bad_response"),
    "malformed JSON": (chat(HI, '{"choices": [{"del'), "bad_response"),
    "JSON that is no object": (chat(HI, "[1, 2]", "3", STOP), SAID),
    "nested without end": (chat(HI, "[" * 100_000), "bad_response"),
    "no UTF-8": (Raw(b"data: \xff\xfe\n\n"), "bad_response"),
    "an error": (chat(HI, {"error": {"message": "Overloaded", "code": 503}}), "overloaded"),
    "an error of words": (chat(HI, {"error": "rate limit exceeded"}), "rate_limited"),
    "an error beside a choice": (chat(HI, STOP | {"error": {"message": "Overloaded"}}), "overloaded"),
    "an error as old vLLM says it": (
        chat({"object": "error", "message": "maximum context length is 8", "code": 400}), "context_too_long"
    ),
    "cut in the text": (Raw(chat(HI, done=False).body, cut=True), "stream_cut"),
    "cut in a call": (Raw(chat(call('{"comm'), done=False).body, cut=True), "stream_cut"),
    "cut in an event": (Raw(chat(HI, HI, done=False).body[:-30], cut=True), "stream_cut"),
    "cut in the first event": (Raw(chat(HI, done=False).body[:-30], cut=True), "connection"),
    "a call": (chat(call(), CALLS), CALLED),
    "a call, then stop": (chat(call(), STOP), CALLED),
    "a call, finished in its chunk": (chat(call(finish="tool_calls")), CALLED),
    "a call, no finish reason, usage": (chat(call(), USAGE), CALLED),
    "a call, finished twice": (chat(call(), CALLS, STOP), CALLED),
    "arguments in pieces": (
        chat(call(""), *[call(c, id=None, function={"arguments": c}) for c in LS], CALLS), CALLED
    ),
    "arguments as an object": (chat(call({"command": "ls"}), CALLS), CALLED),
    "arguments null": (chat(call(None), CALLS), ([exec_call(args={})], "tool_use")),
    "arguments empty": (chat(call(""), CALLS), ([exec_call(args={})], "tool_use")),
    "arguments with junk behind": (chat(call(LS + "}"), CALLS), ([exec_call(invalid=LS + "}")], "tool_use")),
    "arguments that are a list": (chat(call("[1]"), CALLS), ([exec_call(invalid="[1]")], "tool_use")),
    "no id": (chat(call(id=None), CALLS), ([exec_call("?")], "tool_use")),
    "an empty id": (chat(call(id=""), CALLS), ([exec_call("?")], "tool_use")),
    "no index": (chat(call(index=None), CALLS), CALLED),
    "no index, no id": (chat(call(index=None, id=None), CALLS), ([exec_call("?")], "tool_use")),
    "an index that begins at 1": (chat(call(index=1), CALLS), CALLED),
    "no type": (chat(call(type=None), CALLS), CALLED),
    "the name in each piece": (chat(call('{"command": '), call('"ls"}'), CALLS), CALLED),
    "no function": (chat(call(function=None), call(), CALLS), CALLED),
    "a name of no text": (chat(call(function={"name": 7, "arguments": LS}), CALLS), "bad_response"),
    "tool_calls null": (chat(delta(content="hi", tool_calls=None), STOP), SAID),
}  # fmt: skip


@table(CHAT)
def test_chat_completions(clients, answer, expected):
    assert same(clients.ask("openai-completions", answer), expected)


# --- responses --------------------------------------------------------------------------------------


def typed(*events):
    """SSE as the Responses and the Messages API send it: the type is the event's name, too."""
    return Raw("".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode())


def event(kind, **fields):
    return {"type": f"response.{kind}", "sequence_number": 1} | fields


def response(status="completed", **fields):
    return event(status, response={"id": "r", "status": status, "output": []} | fields)


def added(item, index=0):
    return event("output_item.added", output_index=index, item=item)


def item_done(item, index=0):
    return event("output_item.done", output_index=index, item=item)


def function(arguments="", **fields):
    return {
        "type": "function_call",
        "id": "fc",
        "call_id": "c1",
        "name": "exec",
        "arguments": arguments,
    } | fields


CREATED = event("created", response={"id": "r", "status": "in_progress"})
WORDS = event("output_text.delta", output_index=0, item_id="m", content_index=0, delta="hi")
MESSAGE = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "hi"}],
}
PIECES = [event("function_call_arguments.delta", output_index=0, item_id="fc", delta=c) for c in LS]
RESPONSES = {
    "text alone": (typed(WORDS, response()), SAID),
    "no created event": (typed(added(MESSAGE | {"content": []}), WORDS, response()), SAID),
    "only a whole item": (typed(CREATED, item_done(MESSAGE), response()), SAID),
    "only the end": (typed(response(output=[MESSAGE])), SAID),
    "the text told twice": (typed(CREATED, WORDS, item_done(MESSAGE), response(output=[MESSAGE])), SAID),
    "content null": (typed(CREATED, added(MESSAGE | {"content": None}), WORDS, response()), SAID),
    "a delta of null": (typed(CREATED, WORDS | {"delta": None}, WORDS, response()), SAID),
    "output null": (typed(WORDS, response(output=None)), SAID),
    "status missing": (typed(WORDS, event("completed", response={"id": "r"})), SAID),
    "usage of odd types": (typed(WORDS, response(usage={"input_tokens": "many"})), SAID),
    "usage without details": (typed(WORDS, response(usage={"input_tokens": 3, "output_tokens": 2})), SAID),
    "unknown events": (typed(CREATED, event("something.new", x=1), WORDS, {"type": "y"}, response()), SAID),
    "unknown items": (typed(CREATED, added({"type": "web_search_call", "id": "w"}), WORDS, response()), SAID),
    "ended twice": (typed(WORDS, response(), response()), SAID),
    "incomplete, no details": (typed(WORDS, response("incomplete", incomplete_details=None)), SAID),
    "no event names": (Raw(typed(WORDS, response()).body.replace(b"event: ", b": ")), SAID),
    "CRLF": (Raw(typed(WORDS, response()).body.replace(b"\n", b"\r\n")), SAID),
    "BOM": (Raw(BOM + typed(WORDS, response()).body.replace(b"event: ", b": ")), SAID),
    "comments": (Raw(typed(WORDS, response()).body.replace(b"\n\n", b"\n\n: ping\n\n")), SAID),
    "a final [DONE]": (Raw(typed(WORDS, response()).body + b"data: [DONE]\n\n"), SAID),
    "wrong content type": (Raw(typed(WORDS, response()).body, "text/plain"), SAID),
    "a giant event": (typed(WORDS | {"delta": "x" * 2**20}, response()), ([Text("x" * 2**20)], "end_turn")),
    "no end": (typed(CREATED, WORDS, item_done(MESSAGE)), "stream_cut"),
    "[DONE] and no end": (Raw(typed(CREATED, WORDS).body + b"data: [DONE]\n\n"), "stream_cut"),
    "failed without a reason": (typed(WORDS, response("failed")), "bad_response"),
    "cancelled": (typed(WORDS, event("completed", response={"status": "cancelled"})), "bad_response"),
    "failed: no capacity": (
        typed(WORDS, response("failed", error={"code": "server_error", "message": "no"})), "overloaded"
    ),
    "an error event": (typed(WORDS, {"type": "error", "code": "rate_limit_exceeded", "message": "x"}),
                       "rate_limited"),
    "an error inside an error event": (
        typed(CREATED, {"type": "error", "error": {"code": "server_error", "message": "no"}}), "overloaded"
    ),
    "an error without words": (typed(CREATED, {"type": "error"}), "bad_response"),
    "an item of null": (typed(CREATED, added(None), response()), "bad_response"),
    "no type": (Raw(b'data: {"delta": "hi"}\n\n'), "bad_response"),
    "an empty stream": (Raw(b""), "bad_response"),
    "a JSON answer instead of a stream": (Raw(b'{"object": "response"}', "application/json"), "bad_response"),
    "a page": (Raw(b"<html>\n\n<body>Log in</body></html>", "text/html"), "bad_response"),
    "malformed JSON": (Raw(typed(WORDS).body + b'data: {"type": "resp\n\n'), "bad_response"),
    "JSON that is no object": (Raw(b"data: [1]\n\n"), "bad_response"),
    "no UTF-8": (Raw(b"data: \xff\xfe\n\n"), "bad_response"),
    "cut in the text": (Raw(typed(CREATED, WORDS).body, cut=True), "stream_cut"),
    "cut in a call": (Raw(typed(CREATED, added(function()), *PIECES[:5]).body, cut=True), "stream_cut"),
    "a call in pieces": (typed(CREATED, added(function()), *PIECES, response()), CALLED),
    "a call in pieces and whole": (
        typed(CREATED, added(function()), *PIECES, item_done(function(LS)), response()), CALLED
    ),
    "a call at once": (typed(item_done(function(LS)), response()), CALLED),
    "a call at the end": (typed(response(output=[function(LS)])), CALLED),
    "arguments as an object": (typed(item_done(function({"command": "ls"})), response()), CALLED),
    "arguments empty": (typed(item_done(function("")), response()), ([exec_call(args={})], "tool_use")),
    "arguments null": (typed(item_done(function(None)), response()), ([exec_call(args={})], "tool_use")),
    "arguments with junk behind": (
        typed(item_done(function(LS + "}")), response()), ([exec_call(invalid=LS + "}")], "tool_use")
    ),
    "no call id": (typed(item_done(function(LS, call_id=None)), response()), ([exec_call("?")], "tool_use")),
    "calls all at place 0": (
        typed(added(function(LS)), added(function(LS, id="fd", call_id="c2")), response()),
        ([exec_call(), exec_call("c2")], "tool_use"),
    ),
    "parallel calls that mix": (
        typed(
            added(function()), added(function(call_id="c2"), 1), PIECES[0],
            *[piece | {"output_index": 1} for piece in PIECES], *PIECES[1:], response(),
        ),
        ([exec_call(), exec_call("c2")], "tool_use"),
    ),
}  # fmt: skip


@table(RESPONSES)
def test_responses(clients, answer, expected):
    assert same(clients.ask("openai-responses", answer), expected)


# --- messages ---------------------------------------------------------------------------------------

START = {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 3}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
PIECE = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
USE = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}}
LAST = {"type": "message_stop"}


def tool_use(index=0, **fields):
    block = {"type": "tool_use", "id": "c1", "name": "exec", "input": {}} | fields
    return {"type": "content_block_start", "index": index, "content_block": block}


def json_delta(text, index=0):
    return {"type": "content_block_delta", "index": index,
            "delta": {"type": "input_json_delta", "partial_json": text}}  # fmt: skip


MESSAGES = {
    "plain": (typed(START, BLOCK, PIECE, END, LAST), SAID),
    "no content_block_start": (typed(START, PIECE, END, LAST), SAID),
    "no message_start": (typed(BLOCK, PIECE, END, LAST), SAID),
    "no message_stop": (typed(START, BLOCK, PIECE, END), SAID),
    "no stop reason": (typed(START, BLOCK, PIECE, LAST), SAID),
    "stop reason null, then told": (
        typed(START, PIECE, END | {"delta": {"stop_reason": None}}, END, LAST), SAID
    ),
    "told twice": (typed(START, PIECE, END, END, LAST, LAST), SAID),
    "an unknown stop reason": (typed(START, PIECE, END | {"delta": {"stop_reason": "eos"}}, LAST), SAID),
    "no usage": (typed(START | {"message": {}}, PIECE, END | {"usage": None}, LAST), SAID),
    "usage of odd types": (typed(START, PIECE, END | {"usage": {"output_tokens": "2"}}, LAST), SAID),
    "text null": (
        typed(START, PIECE | {"delta": {"type": "text_delta", "text": None}}, PIECE, END), SAID
    ),
    "text in the start": (
        typed(START, BLOCK | {"content_block": {"type": "text", "text": "hi"}}, END, LAST), SAID
    ),
    "unknown events and blocks": (
        typed(START, {"type": "new"}, BLOCK | {"index": 9, "content_block": {"type": "x"}}, PIECE, END), SAID
    ),
    "an unknown delta": (typed(START, BLOCK, PIECE | {"delta": {"type": "new"}}, PIECE, END, LAST), SAID),
    "pings and comments": (
        Raw(typed(START, {"type": "ping"}, PIECE, END, LAST).body.replace(b"\n\n", b"\n\n: x\n\n")), SAID
    ),
    "CRLF": (Raw(typed(START, BLOCK, PIECE, END, LAST).body.replace(b"\n", b"\r\n")), SAID),
    "BOM": (Raw(BOM + typed(PIECE, END, LAST).body), SAID),
    "a final [DONE]": (Raw(typed(START, PIECE, END, LAST).body + b"data: [DONE]\n\n"), SAID),
    "wrong content type": (Raw(typed(START, PIECE, END, LAST).body, "text/plain"), SAID),
    "a giant event": (
        typed(START, PIECE | {"delta": {"type": "text_delta", "text": "x" * 2**20}}, END),
        ([Text("x" * 2**20)], "end_turn"),
    ),
    "no event names": (Raw(typed(START, PIECE, END, LAST).body.replace(b"event: ", b": ")), "bad_response"),
    "no end": (typed(START, BLOCK, PIECE), "stream_cut"),
    "an empty stream": (Raw(b""), "bad_response"),
    "a JSON answer instead of a stream": (Raw(b'{"type": "message"}', "application/json"), "bad_response"),
    "a page": (Raw(b"<html>\n\n<body>Log in</body></html>", "text/html"), "bad_response"),
    "malformed JSON": (Raw(typed(START).body + b'event: x\ndata: {"ty\n\n'), "bad_response"),
    "JSON that is no object": (Raw(b"event: x\ndata: [1]\n\n"), "bad_response"),
    "no UTF-8": (Raw(b"event: x\ndata: \xff\xfe\n\n"), "bad_response"),
    "an error": (typed(START, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
                 "overloaded"),
    "an error of words": (Raw(b"event: error\ndata: rate limit exceeded\n\n"), "rate_limited"),
    "cut in the text": (Raw(typed(START, PIECE).body, cut=True), "stream_cut"),
    "cut in a call": (Raw(typed(START, tool_use(), json_delta('{"comm')).body, cut=True), "stream_cut"),
    "a call in pieces": (typed(START, tool_use(), *[json_delta(c) for c in LS], USE, LAST), CALLED),
    "a call at once": (typed(START, tool_use(input={"command": "ls"}), USE, LAST), CALLED),
    "a call, then end_turn": (typed(START, tool_use(), json_delta(LS), END, LAST), CALLED),
    "a piece that is an object": (typed(START, tool_use(), json_delta({"command": "ls"}), USE, LAST), CALLED),
    "arguments empty": (typed(START, tool_use(), json_delta(""), USE), ([exec_call(args={})], "tool_use")),
    "input null": (typed(START, tool_use(input=None), USE), ([exec_call(args={})], "tool_use")),
    "arguments with junk behind": (
        typed(START, tool_use(), json_delta(LS + "}"), USE), ([exec_call(invalid=LS + "}")], "tool_use")
    ),
    "no id": (typed(START, tool_use(id=None), json_delta(LS), USE), ([exec_call("?")], "tool_use")),
    "no index": (
        Raw(typed(START, tool_use(), json_delta(LS), USE).body.replace(b'"index": 0, ', b"")), CALLED
    ),
    "parallel calls that mix": (
        typed(START, tool_use(), tool_use(1, id="c2"), json_delta('{"command": '), json_delta(LS, 1),
              json_delta('"ls"}'), USE),
        ([exec_call(), exec_call("c2")], "tool_use"),
    ),
}  # fmt: skip


@table(MESSAGES)
def test_messages(clients, answer, expected):
    assert same(clients.ask("anthropic-messages", answer), expected)
