"""The serving side: what answers at once, what needs a task, and what a cancellation leaves."""

import asyncio

import pytest

from beige import wire
from beige.bus.serving import HopReply, Server
from beige.errors import Unavailable
from beige.messages import encode
from beige.messages.base import Empty
from beige.messages.sandbox import SandboxList
from beige.wire import Header


class Outgoing:
    """The bus as far as a server needs it: takes the answers."""

    def __init__(self):
        self.answers = []

    def post(self, header, body=b"", *, session=False):
        self.answers.append((header, body))


def serve(work, *, handlers=None, hops=None):
    async def body():
        bus = Outgoing()
        server = Server(bus, "sandbox", handlers or {}, hops or {}, 8, None)
        await work(server, bus)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(body())


def call(number=1, hop=wire.DIRECT):
    header = Header(type=wire.CALL, id=number, service="sandbox", method="list", hop=hop, ttl_ms=1000)
    return header, encode(Empty())


def test_a_hop_that_knows_its_answer_is_answered_in_the_same_turn():
    async def work(server, bus):
        server.start(*call(hop=wire.AUTHORIZE))
        ((header, _),) = bus.answers
        assert (header.type, header.id, header.verdict) == (wire.REPLY, 1, b"yes")

    serve(work, hops={wire.AUTHORIZE: lambda request: HopReply(verdict=b"yes")})


def test_a_hop_that_has_to_wait_is_answered_when_it_knows():
    disk = asyncio.Event()

    async def waiting(request):
        await disk.wait()
        return HopReply(receipt=b"kept")

    async def work(server, bus):
        server.start(*call(hop=wire.STARTED))
        await asyncio.sleep(0)
        assert bus.answers == []
        disk.set()
        await server.drain(5)
        assert [header.receipt for header, _ in bus.answers] == [b"kept"]

    serve(work, hops={wire.STARTED: waiting})


@pytest.mark.parametrize("later", [False, True])
def test_a_hop_that_fails_says_so(later):
    async def fail_later(request):
        raise Unavailable("no disk")

    def fail(request):
        if later:
            return fail_later(request)
        raise Unavailable("no disk")

    async def work(server, bus):
        server.start(*call(hop=wire.STARTED))
        await server.drain(5)
        ((header, body),) = bus.answers
        assert (header.type, header.code) == (wire.ERR, "unavailable")
        assert wire.decode_error_body(body) == "no disk"

    serve(work, hops={wire.STARTED: fail})


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_cancelled_call_leaves_nothing_whenever_the_cancellation_comes(turns):
    """At 0 it comes in the same batch of messages as the call: its task has not begun."""
    begun = []

    async def listing(request, body):
        begun.append(1)
        await asyncio.sleep(60)
        return SandboxList([])

    async def work(server, bus):
        server.start(*call())
        for _ in range(turns):
            await asyncio.sleep(0)
        server.cancel(1)
        await server.drain(5)
        await asyncio.sleep(0)
        assert server.running == 0
        assert len(begun) == (turns > 0)

    serve(work, handlers={"sandbox.list": listing})
