"""The door: heads that do not come, turns, calls that fail before and after an answer."""

import asyncio
import contextlib
import socket

import pytest

from beige.errors import Denied, Failed, Overloaded, Unavailable
from socket_bridge.egress import Door


class Way:
    """A call whose items are those of `script`; an exception in it ends the call."""

    def __init__(self, script, sent):
        self.script, self.sent = script, sent
        self.error = next((step for step in script if isinstance(step, Exception)), None)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.sent.append("left")

    async def __aiter__(self):
        for step in self.script:
            if isinstance(step, Exception):
                return
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                yield step

    async def send(self, data):
        self.sent.append(data)

    async def end(self):
        self.sent.append("end")

    async def result(self):
        if self.error is not None:
            raise self.error


@contextlib.asynccontextmanager
async def door(*script, limit=4, **options):
    """A served connection's other end, and what the call was sent."""
    sent, asked = [], []

    def connect(agent, request, token):
        asked.append((agent, request.host, request.port, request.method, token))
        return Way(script, sent)

    made = Door("travel", connect, limit, **options)
    serving, ends = [], []

    async def dial():
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        serving.append(asyncio.create_task(made.serve(reader, writer)))
        ends.append(await asyncio.open_connection(sock=ours))
        return ends[-1]

    try:
        yield dial, sent, asked
    finally:
        await made.close()
        await asyncio.gather(*serving)
        for _, writer in ends:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


CONNECT = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"
GET = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"


async def said(dial, request):
    reader, writer = await dial()
    writer.write(request)
    return await asyncio.wait_for(reader.read(), 30)


def test_a_head_that_does_not_come_in_time_is_refused():
    async def main():
        async with door(head_s=0.05) as (dial, _, asked):
            assert (await said(dial, b"GET http://a.exa")).startswith(b"HTTP/1.1 408 ")
            assert asked == []

    asyncio.run(main())


def test_a_turn_that_does_not_come_in_time_is_refused():
    async def main():
        never = asyncio.Event()
        async with door(b"", never, limit=1, turn_s=0.05) as (dial, _, asked):
            reader, writer = await dial()
            writer.write(CONNECT)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            assert (await said(dial, CONNECT)).startswith(b"HTTP/1.1 503 all connections")
            assert len(asked) == 1

    asyncio.run(main())


ERRORS = {
    "policy's": (Denied('no; add agents.travel.sandbox.egress.allow: "a.example:443"'), 403, True),
    "the guards'": (Denied("a.example leads to a private network"), 403, False),
    "unreachable": (Failed("no answer"), 502, False),
    "no service": (Unavailable("no egress process is running"), 503, False),
    "too many": (Overloaded("32 open"), 503, False),
}


@pytest.mark.parametrize(("error", "status", "rule"), ERRORS.values(), ids=ERRORS)
def test_a_call_that_fails_is_a_status_and_names_a_rule_only_if_that_would_help(error, status, rule):
    async def main():
        async with door(error) as (dial, _, _asked):
            answered = await said(dial, CONNECT)
            assert answered.startswith(f"HTTP/1.1 {status} {error}".encode())
            assert (b"X-Beige-Egress-Rule: agents.travel" in answered) == rule

    asyncio.run(main())


def test_an_error_in_the_middle_of_a_tunnel_is_its_end():
    async def main():
        async with door(b"", b"half", Failed("idle")) as (dial, _, _asked):
            answered = await said(dial, CONNECT)
            assert answered == b"HTTP/1.1 200 Connection established\r\n\r\nhalf"

    asyncio.run(main())


def test_bytes_sent_with_the_head_of_a_tunnel_are_not_lost():
    async def main():
        later = asyncio.Event()
        async with door(b"", later, b"down") as (dial, sent, _):
            reader, writer = await dial()
            writer.write(CONNECT + b"early")
            await reader.readuntil(b"\r\n\r\n")
            while b"early" not in sent:
                await asyncio.sleep(0)
            later.set()
            assert await reader.read() == b"down"

    asyncio.run(main())


def test_a_plain_answer_is_passed_on_and_the_call_ended():
    async def main():
        page = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 second\r\n\r\n"
        async with door(b"", page) as (dial, sent, asked):
            answered = await said(dial, GET)
            assert answered.endswith(b"\r\n\r\nok")
            assert sent[1:] == ["end", "left"]
            assert asked == [("travel", "a.example", 80, "GET", "")]

    asyncio.run(main())


def test_an_agent_that_hangs_up_before_its_request_is_whole_asks_for_nothing():
    async def main():
        async with door() as (dial, _, asked):
            reader, writer = await dial()
            writer.write(b"GET http://a.example/")
            writer.write_eof()
            assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400 ")
            assert asked == []

    asyncio.run(main())
