"""Pieces of an answer that come fast travel together; nothing is lost, late or out of order."""

import asyncio

import pytest

from beige.errors import Cancelled, Failed
from beige.messages.llm import PromptEvent
from services.llm.turn.outbox import HELD_LIMIT, Outbox


def piece(text, kind="text_delta"):
    return PromptEvent(kind=kind, text=text)


class Caller:
    """Takes events at its own pace, as one with little credit does."""

    def __init__(self):
        self.seen, self.arrived = [], asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.gone = False

    async def send(self, event):
        await self.open.wait()
        if self.gone:
            raise Cancelled("the caller is gone")
        self.seen.append((event.kind, event.text))
        self.arrived.set()

    async def next(self):
        await asyncio.wait_for(self.arrived.wait(), 10)
        self.arrived.clear()

    async def has(self, text):
        while "".join(piece for _, piece in self.seen) != text:
            await self.next()


def play(steps, hold_s=3600.0):
    async def run():
        caller = Caller()
        async with Outbox(caller.send, hold_s) as outbox:
            await steps(caller, outbox)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return caller.seen

    return asyncio.run(run())


def test_the_first_piece_leaves_at_once_and_the_others_before_what_follows():
    async def steps(caller, outbox):
        for text in "abcd":
            await outbox.send(piece(text))
        assert caller.seen == [("text_delta", "a")]
        await outbox.send(PromptEvent(kind="message_end"))

    assert play(steps) == [("text_delta", "a"), ("text_delta", "bcd"), ("message_end", "")]


def test_pieces_are_held_no_longer_than_told():
    async def steps(caller, outbox):
        await outbox.send(piece("a"))
        await outbox.send(piece("b"))
        await outbox.send(piece("c"))
        await caller.has("abc")
        await outbox.send(piece("d"))
        await outbox.send(piece("e"))
        await caller.has("abcde")

    play(steps, hold_s=0.001)


def test_thoughts_and_words_are_kept_apart():
    async def steps(caller, outbox):
        for text, kind in (("a", "thinking_delta"), ("b", "thinking_delta"), ("c", "text_delta")):
            await outbox.send(piece(text, kind))

    assert play(steps) == [("thinking_delta", "a"), ("thinking_delta", "b"), ("text_delta", "c")]


def test_what_is_held_is_bounded():
    async def steps(caller, outbox):
        for _ in range(100):
            await outbox.send(piece("x" * 1024))

    sizes = [len(text) for _, text in play(steps)]
    assert sum(sizes) == 100 * 1024 and max(sizes) <= HELD_LIMIT and len(sizes) < 10


def test_a_slow_caller_gets_everything_in_order():
    async def steps(caller, outbox):
        await outbox.send(piece("a"))
        caller.open.clear()
        await outbox.send(piece("b"))
        await asyncio.sleep(0)
        after = asyncio.create_task(outbox.send(PromptEvent(kind="message_end")))
        caller.open.set()
        await after
        await outbox.send(piece("c"))

    found = play(steps, hold_s=0.001)
    assert [text or kind for kind, text in found] == ["a", "b", "message_end", "c"]


def test_what_is_held_when_the_turn_fails_was_said_and_is_sent():
    seen = []

    async def run():
        caller = Caller()
        seen.append(caller.seen)
        async with Outbox(caller.send, 3600) as outbox:
            await outbox.send(piece("a"))
            await outbox.send(piece("b"))
            raise Failed("the model failed")

    with pytest.raises(Failed):
        asyncio.run(run())
    assert seen[0] == [("text_delta", "a"), ("text_delta", "b")]


def test_a_caller_that_is_gone_is_told_with_the_next_piece():
    async def steps(caller, outbox):
        await outbox.send(piece("a"))
        caller.gone = True
        await outbox.send(piece("b"))
        with pytest.raises(Cancelled):
            async with asyncio.timeout(10):
                while True:
                    await outbox.send(piece("c"))
                    await asyncio.sleep(0)
        caller.gone = False

    assert play(steps, hold_s=0.002) == [("text_delta", "a")]


def test_a_cancelled_turn_leaves_nothing_behind():
    async def run():
        caller = Caller()

        async def turn():
            async with Outbox(caller.send, 3600) as outbox:
                await outbox.send(piece("a"))
                await outbox.send(piece("b"))
                await asyncio.Event().wait()

        task = asyncio.create_task(turn())
        await caller.next()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert caller.seen == [("text_delta", "a")]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
