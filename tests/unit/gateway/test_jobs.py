"""A job's events: numbered, bounded, followed by anybody at any pace."""

import asyncio
import json

import pytest

from beige.errors import Malformed, NotFound, Overloaded, PeerLost
from beige.messages.llm import PromptEvent, PromptResult
from services.gateway import jobs
from services.gateway.errors import HttpError
from services.gateway.jobs import Jobs, Kept

RESULT = PromptResult(session="s", text="done", stop_reason="end_turn", model="m")


def say(job, *texts):
    for text in texts:
        job.event(PromptEvent(kind="text_delta", text=text))


async def follow(job, after=0):
    """What a follower is shown until the job's end."""
    seen = []
    while await job.more(after):
        gap, events = job.take(after)
        seen += ([gap] if gap else []) + events
        after = events[-1].number
    return seen


@pytest.fixture
def job():
    async def make():
        return Jobs().new("travel", "s")

    return asyncio.run(make())


def test_events_are_numbered_from_one_and_end_with_the_result(job):
    say(job, "a", "b")
    job.end(RESULT)
    _, events = job.take(0)
    assert [(e.number, e.kind) for e in events] == [(1, "text_delta"), (2, "text_delta"), (3, "result")]
    assert json.loads(events[2].data)["text"] == "done"


def test_nothing_comes_after_the_end(job):
    job.end(PeerLost("gone"))
    job.end(RESULT)
    _, events = job.take(0)
    assert len(events) == 1
    error = {"code": "peer_lost", "message": "gone", "executed": "maybe"}
    assert json.loads(events[0].data) == {"kind": "error", "error": error}
    with pytest.raises(PeerLost):
        asyncio.run(job.ended())


def test_who_comes_back_misses_nothing(job):
    say(job, "a", "b", "c")
    job.end(RESULT)
    for after in range(5):
        assert [e.number for e in job.take(after)[1]] == list(range(after + 1, 5))


def test_followers_get_everything_in_order_while_it_happens():
    async def main():
        job = Jobs().new("travel", "s")
        early = asyncio.create_task(follow(job))
        await asyncio.sleep(0)
        say(job, "a")
        late = asyncio.create_task(follow(job))
        await asyncio.sleep(0)
        say(job, "b")
        job.end(RESULT)
        assert await early == await late
        return [e.number for e in await early]

    assert asyncio.run(main()) == [1, 2, 3]


def test_the_buffer_is_bounded_and_says_what_is_gone(job):
    piece = "x" * 10_000
    for _ in range(300):
        say(job, piece)
    gap, events = job.take(0)
    kept = 300 - gap.last
    assert gap.first == 1
    assert kept * 10_000 <= jobs.JOB_BYTES
    assert events[0].number == gap.last + 1
    assert job.take(299)[0] is None


def test_all_jobs_together_are_bounded():
    kept = Kept(size=jobs.ALL_BYTES)
    job = jobs.Job("travel", "s", kept)
    say(job, *"abcdef")
    gap, events = job.take(0)
    assert gap == jobs.Gap(1, 5)
    assert len(events) == 1, "the newest one is always there"


def test_a_follower_takes_bounded_pieces(job):
    say(job, *["x" * 1000] * 500)
    _, events = job.take(0)
    assert sum(len(e.data) for e in events) < jobs.PIECE_BYTES + 2000


def test_what_is_forgotten_frees_its_room():
    all_jobs = Jobs()
    first = all_jobs.new("travel", "s")
    say(first, "a" * 1000)
    first.end(RESULT)
    all_jobs.ended(first)
    for n in range(jobs.MAX_ENDED):
        job = all_jobs.new("travel", f"s{n}")
        job.end(RESULT)
        all_jobs.ended(job)
    with pytest.raises(HttpError) as lost:
        all_jobs.find("travel", "s", f"{first.id}-1")
    assert (lost.value.status, lost.value.code) == (410, "gone")
    assert first.take(0)[1] == []


def test_the_latest_prompt_of_a_session_is_followed_by_its_name():
    all_jobs = Jobs()
    first, second = all_jobs.new("travel", "s"), all_jobs.new("travel", "s")
    assert all_jobs.find("travel", "s", "") == (second, 0)
    assert all_jobs.find("travel", "s", f"{first.id}-0") == (first, 0)
    with pytest.raises(NotFound):
        all_jobs.find("travel", "other", "")


def test_another_sessions_events_can_not_be_had_by_their_id():
    all_jobs = Jobs()
    job = all_jobs.new("travel", "s")
    for agent, session in (("travel", "t"), ("other", "s")):
        with pytest.raises(HttpError):
            all_jobs.find(agent, session, f"{job.id}-0")


@pytest.mark.parametrize("event_id", ["x", "1", "-1", "0123456789abcdef-", "0123456789abcdef-x", "../1-1"])
def test_odd_event_ids_are_malformed(event_id):
    with pytest.raises(Malformed):
        Jobs().find("travel", "s", event_id)


def test_an_event_that_was_not_yet_is_malformed():
    all_jobs = Jobs()
    job = all_jobs.new("travel", "s")
    with pytest.raises(Malformed, match="no event 1 yet"):
        all_jobs.find("travel", "s", f"{job.id}-1")


def test_too_many_at_once_are_refused():
    all_jobs = Jobs()
    for _ in range(jobs.MAX_RUNNING):
        job = all_jobs.new("travel", "s")
    with pytest.raises(Overloaded):
        all_jobs.new("travel", "s")
    job.end(RESULT)
    all_jobs.new("travel", "s")
