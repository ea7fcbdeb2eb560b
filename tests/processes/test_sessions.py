"""Sessions as operators meet them: real llm processes over a real broker, real files."""

import asyncio
import json

import pytest

from beige.bus import Bus
from beige.errors import Cancelled, Denied, Malformed, NotFound, Overloaded
from beige.messages.base import AgentRef, Empty
from beige.messages.llm import ForkRequest, HistoryRequest, PromptRequest, SessionsRequest
from beige.messages.session_settings import SessionSettings, SettingsRequest
from beige.sessions import turn_options
from tests.processes.llm_stage import KEYS, new_session_stage, prompt
from tests.simulator.replies import Silence, Tool, reply


@pytest.fixture(scope="module")
def running():
    """Two llm processes."""
    with new_session_stage() as stage:
        stage.start("broker", "policy", "audit", "sandbox", "llm", "llm/1")
        yield stage


@pytest.fixture
def stage(running):
    running.clean()
    return running


def ask(stage, method, body=None, agent="claude", session="s1"):
    return stage.run(lambda cli: cli.call(method, body or AgentRef(), agent=agent, session=session))


async def history(cli, session="s1", after=0):
    async with cli.open("llm.history", HistoryRequest(after), agent="claude", session=session) as stream:
        data = b"".join([piece async for piece in stream])
        return data, await stream.result()


def test_sessions_are_listed_looked_at_read_copied_and_removed(stage):
    stage.simulator.answer(reply("one"), reply("two"), reply("other"), reply("forked"))
    for session, text in (("s1", "first"), ("s1", "second"), ("s2", "third")):
        stage.prompt("claude", text, session)
    listed = ask(stage, "llm.sessions", SessionsRequest(), session="")
    assert [(info.session, info.title, info.prompts) for info in listed.sessions] == [
        ("s2", "third", 1),
        ("s1", "first", 2),
    ]
    assert listed.total == 2 and ask(stage, "llm.sessions", SessionsRequest(), "glm", "").sessions == []
    info = ask(stage, "llm.session")
    assert (info.outcome, info.model) == ("answered", "anthropic/claude-haiku-4-5")
    assert info.usage == {"input_tokens": 50, "output_tokens": 30}

    async def both(cli):
        whole, result = await history(cli)
        later, _ = await history(cli, after=result.entries - 1)
        return whole, later, result.entries

    whole, later, entries = stage.run(both)
    assert whole == (stage.home.sessions / "claude" / "s1.jsonl").read_bytes()
    assert whole.endswith(later) and later.count(b"\n") == 1 and entries == whole.count(b"\n")

    forked = ask(stage, "llm.fork", ForkRequest(prompts=1))
    assert (forked.prompts, forked.forked_from) == (1, "s1") and forked.session not in ("s1", "s2")
    stage.prompt("claude", "differently", forked.session)
    told = json.dumps(stage.simulator.requests[-1].body["messages"])
    assert "first" in told and "differently" in told and "second" not in told
    assert stage.simulator.problems == []

    ask(stage, "llm.settings", SettingsRequest(set=SessionSettings(verbose=True)))
    assert ask(stage, "llm.remove").prompts == 2
    assert ask(stage, "llm.settings", SettingsRequest()).settings["verbose"].value is False
    with pytest.raises(NotFound):
        ask(stage, "llm.remove")
    assert not (stage.home.sessions / "claude" / "s1.jsonl").exists()


@pytest.mark.parametrize("method", ["llm.sessions", "llm.session", "llm.history", "llm.fork", "llm.remove"])
def test_what_is_not_there_and_what_is_no_name_is_told(stage, method):
    body = {"llm.sessions": SessionsRequest(), "llm.history": HistoryRequest(), "llm.fork": ForkRequest()}
    with pytest.raises(NotFound, match="no agent 'nobody'"):
        ask(stage, method, body.get(method), agent="nobody")
    if method != "llm.sessions":
        with pytest.raises(NotFound, match="no such session"):
            ask(stage, method, body.get(method))
        with pytest.raises(Malformed):
            ask(stage, method, body.get(method), session="../glm/s1")
    assert list(stage.home.sessions.rglob("*")) == []


def test_an_llm_process_may_not_ask_for_sessions(stage):
    async def steps():
        async with Bus(stage.home, "audit/0") as other:
            await other.call("llm.sessions", SessionsRequest(), agent="claude")

    with pytest.raises(Denied):
        asyncio.run(steps())


def waiting_prompt(cli, text, events=None, agent="claude"):
    """A prompt as callers make it, and its events."""

    async def run():
        async with cli.open("llm.prompt", PromptRequest(text), **turn_options(agent, "s1", "test")) as stream:
            async for event in stream:
                if events is not None:
                    events.put_nowait(event)
            return await stream.result()

    return asyncio.create_task(run())


async def until(events, condition):
    async with asyncio.timeout(20):
        while not condition(await events.get()):
            pass


def test_cancel_kills_the_command_ends_every_waiting_prompt_and_the_session_goes_on(stage):
    stage.simulator.answer(reply(Tool("exec", {"command": "echo on; sleep 60"})), reply("Back."))

    async def steps(cli):
        events, queued = asyncio.Queue(), asyncio.Queue()
        first = waiting_prompt(cli, "first", events)
        await until(events, lambda event: event.kind == "tool_output")
        second = waiting_prompt(cli, "second", queued)
        await until(queued, lambda event: "is busy" in event.text)
        assert (await cli.call("llm.session", AgentRef(), agent="claude", session="s1")).outcome == "running"
        with pytest.raises(Overloaded, match="cancel its prompts first"):
            await cli.call("llm.remove", AgentRef(), agent="claude", session="s1")
        told = await cli.call("bus.cancel", Empty(), agent="claude", session="s1")
        for task in (first, second):
            with pytest.raises(Cancelled, match="an operator cancelled"):
                await task
        again, _ = await prompt(cli, "claude", "third")
        return told.cancelled, again.text

    assert stage.run(steps) == (2, "Back.")
    assert "killed echo on; sleep 60" in stage.effects()
    lines = stage.session("claude", "s1")
    assert [line["text"] for line in lines if line["type"] == "prompt"] == ["first", "third"]
    assert [line["outcome"] for line in lines if line["type"] == "turn_end"] == ["cancelled", "answered"]
    assert stage.simulator.problems == []


def test_cancel_in_the_middle_of_an_answer_gives_up_the_connection(stage):
    stage.simulator.answer(Silence())

    async def steps(cli):
        task = waiting_prompt(cli, "x")
        await asyncio.to_thread(stage.simulator.wait_for, lambda: len(stage.simulator.requests) == 1)
        await cli.call("bus.cancel", Empty(), agent="claude", session="s1")
        with pytest.raises(Cancelled):
            await task
        await asyncio.to_thread(stage.simulator.wait_for, lambda: stage.simulator.disconnected == 1)

    stage.run(steps)


def test_cancel_without_a_prompt_cancels_none_and_needs_a_session(stage):
    assert ask(stage, "bus.cancel", Empty()).cancelled == 0
    with pytest.raises(Malformed, match="an agent and a session"):
        ask(stage, "bus.cancel", Empty(), session="")


def test_a_prompt_that_waits_in_a_process_that_is_stopped_is_served_by_the_other(stage):
    stage.simulator.answer(Silence(), reply("Back."))

    async def steps(cli):
        events, queued = asyncio.Queue(), asyncio.Queue()
        first = waiting_prompt(cli, "first", events)
        await asyncio.to_thread(stage.simulator.wait_for, lambda: len(stage.simulator.requests) == 1)
        stats = await cli.call("bus.stats", Empty())
        busy = {peer.user for peer in stats.peers if peer.service == "llm" and peer.in_flight}
        name = {"llm/0": "llm", "llm/1": "llm/1"}[busy.pop()]
        second = waiting_prompt(cli, "second", queued)
        await until(queued, lambda event: "is busy" in event.text)
        assert await asyncio.to_thread(stage.house.stop, name) == 0
        with pytest.raises(Cancelled):
            await first
        answer = (await second).text
        await asyncio.to_thread(stage.house.start, name, env=KEYS)
        return answer

    assert stage.run(steps) == "Back."
    lines = stage.session("claude", "s1")
    assert [line["text"] for line in lines if line["type"] == "prompt"] == ["first", "second"]
    assert [line["outcome"] for line in lines if line["type"] == "turn_end"] == ["cancelled", "answered"]


def test_prompts_to_one_session_are_served_in_the_order_they_were_made(stage):
    """Over two processes, whoever makes them and with or without an affinity key."""
    stage.simulator.answer(*[reply(f"answer {n}") for n in range(12)])

    async def steps(cli):
        async with Bus(stage.home, "cli/1") as other:
            made = []
            for n in range(12):
                bus = (cli, other)[n % 2]
                options = {"agent": "claude", "session": "s1", "ttl_s": 60}
                if n % 3:
                    options = turn_options("claude", "s1", "test")
                stream = bus.open("llm.prompt", PromptRequest(f"p{n}"), **options)
                await stream.__aenter__()
                # an answer from the broker over the same connection: it has the prompt now
                await bus.call("bus.stats", Empty())
                made.append(stream)
            return [(await stream.result()).text for stream in made]

    assert stage.run(steps) == [f"answer {n}" for n in range(12)]
    lines = [line for line in stage.session("claude", "s1") if line["type"] not in ("session", "context")]
    assert [line["text"] for line in lines if line["type"] == "prompt"] == [f"p{n}" for n in range(12)]
    assert [line["type"] for line in lines] == ["prompt", "assistant", "turn_end"] * 12
