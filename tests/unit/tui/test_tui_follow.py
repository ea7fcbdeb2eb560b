"""A turn followed through lost connections; the API is played at the Protocol."""

import asyncio

import pytest

from beige.tui.api import ApiError, Away
from beige.tui.follow import Back, Follower, Gone, Lost
from beige.tui.sse import ServerEvent


def event(n, kind="text_delta", job="j1"):
    return ServerEvent(f"{job}-{n}", kind, "{}")


class Streams:
    """Each connection yields what is listed for it; an exception in it is raised there."""

    def __init__(self, *connections):
        self._connections = list(connections)
        self.asked = []

    def prompt(self, agent, session, text):
        self.asked.append(("prompt", text))
        return self._next()

    def events(self, agent, session, after):
        self.asked.append(("events", after))
        return self._next()

    async def _next(self):
        for item in self._connections.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item


def follow(streams, follower=None):
    async def run():
        it = follower or Follower(streams, "a", "s", pauses_s=(0.0,))
        return [step async for step in it.turn("go")]

    return asyncio.run(run())


BROKEN, REFUSED = Away("reset", sent=True), Away("refused", sent=False)


def test_a_turn_without_trouble():
    streams = Streams([event(1), event(2, "result")])
    assert follow(streams) == [event(1), event(2, "result")]
    assert streams.asked == [("prompt", "go")]


def test_after_a_lost_connection_it_goes_on_behind_the_last_event():
    streams = Streams([event(1), event(2), BROKEN], [REFUSED], [BROKEN], [event(3), event(4, "result")])
    assert follow(streams) == [
        event(1), event(2), Lost("reset"), Back(), event(3), event(4, "result"),
    ]  # fmt: skip
    assert streams.asked == [("prompt", "go"), *[("events", "j1-2")] * 3]


def test_a_stream_that_just_ends_is_a_lost_connection_too():
    streams = Streams([event(1)], [event(2, "error")])
    assert follow(streams) == [event(1), Lost("the stream ended early"), Back(), event(2, "error")]


def test_each_loss_is_told():
    streams = Streams([event(1), BROKEN], [event(2), BROKEN], [event(3, "result")])
    assert follow(streams) == [
        event(1), Lost("reset"), Back(), event(2), Lost("reset"), Back(), event(3, "result"),
    ]  # fmt: skip
    assert streams.asked[-1] == ("events", "j1-2")


@pytest.mark.parametrize("status", [404, 410])
def test_a_restarted_gateway_has_the_turn_no_longer(status):
    streams = Streams([event(1), BROKEN], [ApiError(status, "gone", "restarted")])
    assert follow(streams) == [event(1), Lost("reset"), Gone("restarted")]


def test_a_gateway_that_is_starting_is_asked_again():
    streams = Streams([event(1), BROKEN], [ApiError(503, "unavailable", "starting")], [event(2, "result")])
    assert follow(streams) == [event(1), Lost("reset"), Back(), event(2, "result")]


def test_a_prompt_that_was_never_sent_is_not_asked_after():
    streams = Streams([REFUSED])
    with pytest.raises(Away):
        follow(streams)
    assert streams.asked == [("prompt", "go")]


def test_a_refused_prompt_is_not_asked_after():
    with pytest.raises(ApiError, match="no such scope"):
        follow(Streams([ApiError(403, "denied", "no such scope")]))


def test_a_prompt_lost_on_its_way_is_told_from_the_turn_before_it():
    streams = Streams([event(1, "result")], [BROKEN], [event(1, "result")])
    follower = Follower(streams, "a", "s", pauses_s=(0.0,))
    assert follow(streams, follower) == [event(1, "result")]
    assert follow(streams, follower) == [Lost("reset"), Gone("the prompt did not arrive; send it again")]
    assert streams.asked[-1] == ("events", "")


def test_a_prompt_that_arrived_though_its_answer_did_not_is_followed_from_its_first_event():
    new = [event(1, job="j2"), event(2, "result", job="j2")]
    streams = Streams([event(1, "result")], [BROKEN], new)
    follower = Follower(streams, "a", "s", pauses_s=(0.0,))
    follow(streams, follower)
    assert follow(streams, follower) == [Lost("reset"), Back(), *new]


def test_a_turn_that_somebody_else_began_is_followed_from_its_first_event():
    streams = Streams([event(1), event(2, "result")])

    async def run():
        return [step async for step in Follower(streams, "a", "s", pauses_s=(0.0,)).rest()]

    assert asyncio.run(run()) == [event(1), event(2, "result")]
    assert streams.asked == [("events", "")]
