"""What holds for every API. The real SDKs against the simulator."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from services.llm.conversation import Assistant, Text
from services.llm.events import MessageDone, TextDelta
from tests.simulator.replies import Fault, reply
from tests.unit.llm.providers.asking import OPEN, answered, events_of, request, text_of

api = pytest.mark.parametrize("api", OPEN)


@api
def test_text_comes_in_pieces_and_then_whole(simulator, api):
    simulator.answer(reply("Hello, wörld ✓"))
    events = answered(OPEN[api](simulator.url))
    assert len([event for event in events if isinstance(event, TextDelta)]) == 3
    assert text_of(events) == "Hello, wörld ✓"
    assert events[-1] == MessageDone(
        Assistant(
            model="p/m",
            content=[Text("Hello, wörld ✓")],
            stop_reason="end_turn",
            usage={"input_tokens": 25, "output_tokens": 15},
        )
    )


@api
def test_giving_up_closes_the_connection(simulator, api):
    simulator.answer(reply("hello", fault=Fault("hang", 5)))

    async def run():
        provider = OPEN[api](simulator.url)
        async with aclosing(provider.stream(request())) as events:
            async for _ in events:
                break
        await asyncio.to_thread(simulator.wait_for, lambda: simulator.disconnected == 1)
        await provider.close()

    asyncio.run(run())


@api
def test_many_streams_share_one_provider(simulator, api):
    simulator.answer(*[reply(f"answer {n}") for n in range(20)])

    async def run():
        provider = OPEN[api](simulator.url)
        try:
            return await asyncio.gather(*[events_of(provider) for _ in range(20)])
        finally:
            await provider.close()

    assert sorted(map(text_of, asyncio.run(run()))) == sorted(f"answer {n}" for n in range(20))
    assert threading.active_count() < 30, "a stream needs no thread"
