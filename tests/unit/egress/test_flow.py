"""One connection's limits: silence, bytes, a hello that does not come; and who may end it."""

import asyncio
import contextlib

import pytest

from beige.errors import Denied, Failed, TooLarge
from beige.wire import Outcome
from services.egress.dialer import Link
from services.egress.flow import Flow, Limits
from services.egress.hello import Hello

END = object()


class Call:
    """The bus's side: items up are put into `up`, items down are collected."""

    def __init__(self):
        self.outcome = Outcome()
        self.up = asyncio.Queue()
        self.down = b""

    async def send(self, item):
        self.down += item

    async def items(self):
        while (item := await self.up.get()) is not END:
            yield item


@contextlib.asynccontextmanager
async def server(serve):
    """A link to a server that runs `serve(reader, writer)`."""
    tasks = []

    async def served(reader, writer):
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    listening = await asyncio.start_server(served, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    try:
        yield Link(reader, writer)
    finally:
        writer.transport.abort()
        listening.close()
        await asyncio.gather(*tasks)


def flowing(serve, *up, hello=None, **limits):
    """The flow's result, or its error, and the call."""

    async def main():
        call = Call()
        for item in up:
            call.up.put_nowait(item)
        async with server(serve) as link:
            outcome = await asyncio.gather(
                Flow(call, link, hello, Limits(**limits)).run(), return_exceptions=True
            )
        return outcome[0], call

    return asyncio.run(main())


async def silent(reader, _writer):
    await reader.read(1)


async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data)


async def endless(reader, writer):
    while True:
        writer.write(b"x" * 10_000)
        await writer.drain()


def test_silence_ends_it():
    error, call = flowing(silent, hello=Hello("a.example", 22), idle_s=0.05)
    assert isinstance(error, Failed)
    assert "idle" in call.outcome.error


def test_more_bytes_than_the_limit_end_it_and_are_counted():
    error, call = flowing(endless, hello=Hello("a.example", 22), bytes=100_000)
    assert isinstance(error, TooLarge)
    assert 100_000 < call.outcome.output_bytes < 200_000


def test_a_connection_that_never_falls_silent_ends_with_its_time():
    error, call = flowing(endless, hello=Hello("a.example", 22), duration_s=0.05, idle_s=300.0)
    assert isinstance(error, Failed)
    assert "has lasted 0.05 s" in call.outcome.error
    assert call.outcome.output_bytes > 0


def test_no_hello_on_the_port_of_tls_ends_it():
    error, _ = flowing(silent, hello=Hello("a.example", 443), hello_s=0.05)
    assert isinstance(error, Failed)
    assert "no TLS" in str(error)


def test_a_wrong_hello_ends_it_and_nothing_went_out():
    error, call = flowing(echo, b"GET / HTTP/1.1\r\n\r\n", hello=Hello("a.example", 443))
    assert isinstance(error, Denied)
    assert (call.outcome.input_bytes, call.down) == (0, b"")


def test_a_tunnel_goes_on_after_the_agents_end_until_the_servers():
    result, call = flowing(echo, b"hello", b" there", END, hello=Hello("a.example", 22))
    assert (result.sent_bytes, result.received_bytes, call.down) == (11, 11, b"hello there")
    assert (call.outcome.input_bytes, call.outcome.output_bytes, call.outcome.error) == (11, 11, "")


def test_a_plain_request_ends_with_its_sender_though_the_server_holds_on():
    result, _ = flowing(silent, b"x", END)
    assert result.sent_bytes == 1


def test_a_server_that_resets_is_an_end_with_a_reason():
    async def reset(reader, writer):
        await reader.read(1)
        writer.transport.abort()

    result, call = flowing(reset, b"x" * 100_000, hello=Hello("a.example", 22))
    assert not isinstance(result, BaseException)
    assert call.outcome.input_bytes == 100_000


def test_cancelling_it_closes_the_connection():
    async def main():
        reached, closed = asyncio.Event(), asyncio.Event()

        async def until_closed(reader, _writer):
            with contextlib.suppress(ConnectionError):
                while await reader.read(1):
                    reached.set()
            closed.set()

        call = Call()
        call.up.put_nowait(b"x")
        async with server(until_closed) as link:
            task = asyncio.create_task(Flow(call, link, None, Limits()).run())
            await asyncio.wait_for(reached.wait(), 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(closed.wait(), 30)
        assert call.outcome.input_bytes == 1

    asyncio.run(main())
