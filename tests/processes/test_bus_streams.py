"""Streams over a real broker: order, back-pressure, ends, and what happens when a side leaves."""

import asyncio

import pytest

from beige import wire
from beige.bus import Bus
from beige.errors import BeigeError, PeerLost
from beige.messages.llm import PromptEvent, PromptRequest, PromptResult

DONE = PromptResult(session="s", text="", stop_reason="end", model="m")


def event(number, size=1):
    return PromptEvent(kind="text_delta", text=f"{number}:" + "x" * size)


def play(house, handler, script, **options):
    """Run `script(caller)` against a worker that serves llm.prompt with `handler`."""
    house.start("broker")

    async def main():
        worker = Bus(house.home, "llm/0")
        worker.serve("llm", {"llm.prompt": handler}, **options)
        await worker.start()
        try:
            async with Bus(house.home, "cli/0") as caller:
                await asyncio.wait_for(script(caller), 60)
        finally:
            await worker.close()

    asyncio.run(main())


def prompt(caller, **options):
    return caller.open("llm.prompt", PromptRequest(text="go"), agent="travel", **options)


def test_items_arrive_in_order_and_before_the_result(house):
    async def handler(request, body):
        for number in range(1000):
            await request.send(event(number))
        return DONE

    async def script(caller):
        async with prompt(caller) as stream:
            seen = [item.text async for item in stream]
            assert [int(text.split(":")[0]) for text in seen] == list(range(1000))
            assert (await stream.result()).stop_reason == "end"

    play(house, handler, script)


def test_a_slow_reader_stops_the_producer_at_its_window(house):
    sent = []

    async def handler(request, body):
        for number in range(500):
            await request.send(event(number, size=8192))
            sent.append(number)
        return DONE

    async def script(caller):
        async with prompt(caller) as stream:
            items = aiter(stream)
            await anext(items)
            await asyncio.sleep(0.3)  # the producer has all the time it wants
            at_most = wire.WINDOW_BYTES // 8192 + 2
            assert len(sent) <= at_most, "the producer ran past its reader's window"
            rest = [item async for item in items]
            assert len(rest) == 499

    play(house, handler, script)


def test_leaving_a_stream_early_cancels_the_call(house):
    cancelled = asyncio.Event()

    async def handler(request, body):
        try:
            for number in range(10**6):
                await request.send(event(number))
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return DONE

    async def script(caller):
        async with prompt(caller) as stream:
            async for item in stream:
                if item.text.startswith("10:"):
                    break
        await asyncio.wait_for(cancelled.wait(), 5)

    play(house, handler, script)


def test_a_caller_that_wants_no_items_costs_the_producer_nothing(house):
    async def handler(request, body):
        assert not request.wants_items
        for number in range(1000):
            await request.send(event(number))
        return DONE

    async def script(caller):
        assert (
            await caller.call("llm.prompt", PromptRequest(text="go"), agent="travel")
        ).stop_reason == "end"

    play(house, handler, script)


def test_an_error_ends_the_stream_after_its_items(house):
    async def handler(request, body):
        await request.send(event(1))
        raise PeerLost("the provider hung up")

    async def script(caller):
        async with prompt(caller) as stream:
            assert len([item async for item in stream]) == 1
            with pytest.raises(PeerLost, match="the provider hung up"):
                await stream.result()

    play(house, handler, script)


def test_an_unexpected_exception_says_nothing_of_the_inside(house):
    async def handler(request, body):
        raise RuntimeError("secret path /root/x")

    async def script(caller):
        with pytest.raises(BeigeError) as caught:
            await caller.call("llm.prompt", PromptRequest(text="go"), agent="travel")
        assert (caught.value.code, str(caught.value)) == ("failed", "internal error in llm")

    play(house, handler, script)


def test_a_wrong_body_is_answered_with_the_fields_name(house):
    from beige.messages.base import Body

    class Wrong(Body):
        text: int

    async def handler(request, body):
        raise AssertionError("must not be reached")

    async def script(caller):
        with pytest.raises(BeigeError) as caught:
            await caller.call("llm.prompt", Wrong(text=1), agent="travel")
        assert caught.value.code == "malformed" and "$.text" in str(caught.value)

    play(house, handler, script)


def test_streams_and_small_calls_share_the_bus(house):
    """A 30 MB stream and 200 small calls at once: all arrive."""

    async def handler(request, body):
        if request.wants_items:
            for number in range(480):
                await request.send(event(number, size=64 * 1024))
        return DONE

    async def script(caller):
        async def bulk():
            async with prompt(caller) as stream:
                return sum([len(item.text) async for item in stream])

        async def small():
            await caller.call("llm.prompt", PromptRequest(text="go"), agent="travel")

        sizes, *_ = await asyncio.gather(bulk(), *(small() for _ in range(200)))
        assert sizes > 480 * 64 * 1024

    play(house, handler, script)


def test_draining_finishes_what_is_being_served(house):
    house.start("broker")
    entered = asyncio.Event()

    async def handler(request, body):
        entered.set()
        await asyncio.sleep(0.3)
        return DONE

    async def main():
        worker = Bus(house.home, "llm/0")
        worker.serve("llm", {"llm.prompt": handler})
        await worker.start()
        async with Bus(house.home, "cli/0") as caller:
            call = asyncio.ensure_future(caller.call("llm.prompt", PromptRequest(text="go"), agent="travel"))
            await entered.wait()
            await worker.close()
            assert (await asyncio.wait_for(call, 5)).stop_reason == "end"

    asyncio.run(main())


def test_an_empty_stream_up_ends_for_an_executor_that_is_slow_to_read(house):
    """Its end is not sent before somebody is there to hear it."""

    async def handler(request, body):
        assert [item async for item in request.items()] == []
        return DONE

    async def script(caller):
        for _ in range(20):
            async with prompt(caller) as stream:
                await stream.end()
                assert (await stream.result()).stop_reason == "end"

    play(house, handler, script)


def test_an_end_that_nobody_reads_does_not_wait_longer_than_the_call(house):
    async def handler(request, body):
        return DONE

    async def script(caller):
        async with prompt(caller) as stream:
            await stream.end()
            assert (await stream.result()).stop_reason == "end"

    play(house, handler, script)
