"""Flow control: nobody sends more than was granted, and nobody waits for ever."""

import asyncio

import pytest

from beige.bus.credit import Receiver, Sender
from beige.errors import PeerLost


def test_a_sender_waits_for_credit():
    async def play():
        sender = Sender(items=1, size=10)
        await sender.take(5)
        waiting = asyncio.ensure_future(sender.take(5))
        await asyncio.sleep(0)
        assert not waiting.done()
        sender.grant(1, 10)
        await waiting

    asyncio.run(play())


def test_a_waiting_sender_hears_of_the_end():
    async def play():
        sender = Sender()
        waiting = asyncio.ensure_future(sender.take(1))
        await asyncio.sleep(0)
        sender.fail(PeerLost("gone"))
        with pytest.raises(PeerLost):
            await waiting

    asyncio.run(play())


def test_a_receiver_grants_more_at_half_its_window():
    async def play():
        granted = []
        receiver = Receiver(4, 1000, lambda items, size: granted.append((items, size)))
        for _ in range(4):
            receiver.put(b"x" * 10)
        await receiver.get()
        assert granted == []
        await receiver.get()
        assert granted == [(2, 20)]

    asyncio.run(play())


def test_items_before_the_end_are_delivered_before_it():
    async def play():
        receiver = Receiver(4, 100, lambda *_: None)
        receiver.put(b"1")
        receiver.end(PeerLost("gone"))
        assert await receiver.get() == b"1"
        with pytest.raises(PeerLost):
            await receiver.get()

    asyncio.run(play())


def test_credit_is_conserved_over_a_long_stream():
    async def play():
        sender = Sender(8, 64)
        receiver = Receiver(8, 64, sender.grant)
        seen = []

        async def produce():
            for number in range(1000):
                await sender.take(7)
                receiver.put(bytes([number % 256]) * 7)
            receiver.end()

        async def consume():
            while (body := await receiver.get()) is not None:
                seen.append(body[0])

        await asyncio.wait_for(asyncio.gather(produce(), consume()), 10)
        assert seen == [n % 256 for n in range(1000)]

    asyncio.run(play())
