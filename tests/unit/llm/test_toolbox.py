"""The tools over a bus that is played: a fake at the `Caller` protocol."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

import pytest

from beige.errors import Cancelled, Denied, NotFound, PeerLost, Unavailable
from beige.messages.base import INLINE_LIMIT
from beige.messages.sandbox import (
    ExecItem,
    ExecRequest,
    ExecResult,
    PatchRequest,
    PatchResult,
    ReadRequest,
    ReadResult,
    WriteRequest,
    WriteResult,
)
from services.llm.conversation import Image, Text, ToolCall
from services.llm.toolbox import Toolbox, read_text


class Bus:
    """Answers each call with `outcome` after `items`; keeps what was asked and sent up."""

    def __init__(self, outcome, items=(), wants_items=True, refuses_upload=False):
        self.outcome, self.items, self.wants_items = outcome, items, wants_items
        self.refuses_upload = refuses_upload
        self.asked, self.options, self.sent, self.ended = [], [], [], False

    @asynccontextmanager
    async def open(self, method, body, **options):
        self.asked.append((method, body))
        self.options.append(options)
        yield self

    async def __aiter__(self):
        for item in self.items:
            yield item

    async def send(self, data):
        if self.refuses_upload:
            raise Cancelled("the call is answered; nothing more is read")
        self.sent.append(data)

    async def end(self):
        self.ended = True

    async def result(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def run(bus, name, **args):
    """The call's result and the events it sent."""
    events = []

    async def emit(event):
        events.append(event)

    call = ToolCall("t1", name, args)
    return asyncio.run(Toolbox(bus, emit, deadline_s=600).run(call)), events


def test_exec_streams_its_output_and_returns_it():
    ended = ExecResult(exit_code=1, stdout=b"\xc3\xa9!", stderr=b"no")
    items = [ExecItem("stdout", b"\xc3"), ExecItem("stderr", b"no"), ExecItem("stdout", b"\xa9!")]
    bus = Bus(ended, items)
    result, events = run(bus, "exec", command="ls", timeout_s=5)
    assert bus.asked == [("sandbox.exec", ExecRequest(command="ls", timeout_s=5.0))]
    assert bus.options[0]["ttl_s"] == 65.0
    assert [(event.kind, event.stream, event.text) for event in events] == [
        ("tool_output", "stderr", "no"),
        ("tool_output", "stdout", "é!"),
    ]
    assert (result.exit_code, result.is_error) == (1, False)
    assert result.content == [Text("exit code 1"), Text("stdout:\né!"), Text("stderr:\nno")]


@pytest.mark.parametrize(("timeout_s", "ttl_s"), [(0, 660.0), (1e6, 660.0), (1, 61.0)])
def test_no_command_outlives_the_agents_deadline(timeout_s, ttl_s):
    bus = Bus(ExecResult(exit_code=0))
    run(bus, "exec", command="ls", timeout_s=timeout_s)
    assert bus.options[0]["ttl_s"] == ttl_s


def test_output_is_not_asked_for_when_nobody_listens():
    bus = Bus(ExecResult(exit_code=0), wants_items=False)
    run(bus, "exec", command="ls")
    assert bus.options[0]["window_items"] == 0


def test_read_takes_inline_and_streamed_content():
    inline = Bus(ReadResult(kind="text", content=b"one\n"))
    assert run(inline, "read", path="a", offset=2)[0].content == [Text("one\n")]
    assert inline.asked == [("sandbox.read", ReadRequest(path="a", offset=2))]
    streamed = Bus(ReadResult(kind="image", media_type="image/png", size=6, streamed=True), [b"abc", b"def"])
    assert run(streamed, "read", path="a.png")[0].content[1] == Image("image/png", b"abcdef")


def test_small_content_rides_in_the_call():
    bus = Bus(WriteResult(size=3, created=True))
    result, _ = run(bus, "write", path="a", content="ü!")
    assert bus.asked == [("sandbox.write", WriteRequest(path="a", content="ü!".encode()))]
    assert result.content == [Text("created a, 3 bytes")]


def test_large_content_is_streamed_and_the_call_carries_size_and_digest():
    text = "ü" * (INLINE_LIMIT // 2) + "x"
    data = text.encode()
    bus = Bus(WriteResult(size=len(data), created=False))
    run(bus, "write", path="a", content=text)
    digest = hashlib.sha256(data).hexdigest()
    assert bus.asked == [("sandbox.write", WriteRequest(path="a", size=len(data), sha256=digest))]
    assert b"".join(bus.sent) == data and bus.ended
    assert max(len(chunk) for chunk in bus.sent) <= 64 * 1024


def test_an_upload_that_is_refused_ends_with_the_calls_own_error():
    bus = Bus(Denied("Permission denied: tool 'write'"), refuses_upload=True)
    result, _ = run(bus, "write", path="a", content="x" * (INLINE_LIMIT + 1))
    assert result.is_error and result.text == "denied: Permission denied: tool 'write'"


def test_patch():
    bus = Bus(PatchResult(replacements=1, first_line=3))
    result, _ = run(bus, "patch", path="a", old="x", new="y")
    assert bus.asked == [("sandbox.patch", PatchRequest(path="a", old="x", new="y"))]
    assert result.text == "changed a in 1 place, first at line 3"


@pytest.mark.parametrize(
    "error", [Denied("no"), Unavailable("nobody"), PeerLost("gone"), NotFound("no such file")]
)
def test_errors_become_results(error):
    result, _ = run(Bus(error), "exec", command="ls")
    assert result.is_error and str(error) in result.text


def test_wrong_arguments_become_results_and_call_nothing():
    bus = Bus(ExecResult(exit_code=0))
    result, _ = run(bus, "exec", comand="ls")
    assert result.is_error and "field" in result.text and "comand" in result.text
    assert bus.asked == []


def test_a_cancelled_call_is_no_result():
    with pytest.raises(Cancelled):
        run(Bus(Cancelled("the parent ended")), "exec", command="ls")


def test_reading_a_text_is_bounded():
    streamed = Bus(ReadResult(kind="text", streamed=True), [b"abc", b"def"])
    assert asyncio.run(read_text(streamed, "/workspace/AGENTS.md", 4)) == "abcd\n[cut after 4 bytes]"
    assert asyncio.run(read_text(Bus(ReadResult(kind="text", content=b"abcd")), "x", 4)) == "abcd"
