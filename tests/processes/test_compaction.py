"""Conversations that grow too long: real llm processes, the real SDKs, the simulator that refuses what the
APIs would refuse."""

import asyncio
import contextlib
import json
import shutil

import pytest

from beige.errors import Cancelled, Failed, NotFound
from beige.messages.base import AgentRef, Empty
from beige.messages.llm import CompactRequest
from beige.sessions import turn_options
from beige.testing import House, short_home
from tests.processes.llm_stage import Stage, texts
from tests.simulator.replies import Refusal, Silence, Tool, reply
from tests.simulator.server import Simulator

TOO_LONG = Refusal(400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum")
AGENTS = ["claude", "glm"]


def config(url):
    limits = {"contextWindow": 20_000, "compactionThreshold": 10_000}
    models = {
        "claude": {"provider": "anthropic", "model": "claude-haiku-4-5", **limits},
        "glm": {"provider": "zai", "model": "glm-5", **limits},
        "demo": {"provider": "demo", "model": "walk"},
    }
    return {
        "llm": {
            "providers": {
                "anthropic": {"apiKey": "${ANTHROPIC_API_KEY}", "baseUrl": url, "timeoutS": 30},
                "zai": {"api": "openai-completions", "apiKey": "${ZAI_API_KEY}", "baseUrl": f"{url}/v1"},
                "demo": {"api": "scripted", "script": "script.json5"},
            }
        },
        "agents": {
            name: {"model": model, "tools": [], "sandbox": {"image": "x"}} for name, model in models.items()
        },
    }


@contextlib.contextmanager
def new_stage():
    with Simulator() as simulator, short_home() as home:
        home.config.write_text(json.dumps(config(simulator.url)))
        (home.root / "script.json5").write_text('[{ say: "hello" }]')
        with House(home) as house:
            yield Stage(house, simulator)


@pytest.fixture(scope="module")
def running():
    with new_stage() as stage:
        stage.start()
        yield stage


@pytest.fixture
def stage(running):
    running.simulator.reset()
    for directory in (running.home.sessions, running.work):
        shutil.rmtree(directory)
        directory.mkdir(mode=0o700)
    return running


def asked(stage, number):
    """The conversation of a request, as text."""
    return json.dumps(stage.simulator.requests[number].body["messages"], ensure_ascii=False)


def types(stage, agent):
    return [line["type"] for line in stage.session(agent, "s1")]


@pytest.mark.parametrize("agent", AGENTS)
def test_older_turns_are_summarised_before_the_next_call(stage, agent):
    big = "x" * 20_000
    stage.simulator.answer(reply(big, input_tokens=12_000), reply("IN SHORT"), reply("Fine."))
    stage.prompt(agent, "first task")
    result, events = stage.prompt(agent, "second task")
    assert result.text == "Fine."
    assert result.usage["input_tokens"] == 50, "the summary's tokens are counted"
    event = next(event for event in events if event.kind == "compaction")
    assert "its first 2 messages are summarised" in event.text and event.usage["input_tokens"] == 25
    summary = stage.simulator.requests[1].body
    assert "USER:\\nfirst task" in asked(stage, 1) and "tools" not in {k for k, v in summary.items() if v}
    assert "IN SHORT" in asked(stage, 2) and "second task" in asked(stage, 2) and big not in asked(stage, 2)
    assert big in json.dumps(stage.session(agent, "s1")), "the file keeps all of it"
    assert types(stage, agent)[-5:] == ["turn_end", "prompt", "compaction", "assistant", "turn_end"]
    assert stage.simulator.problems == []
    info = stage.run(lambda cli: cli.call("llm.session", AgentRef(), agent=agent, session="s1"))
    assert info.usage["input_tokens"] == 12_050 and info.prompts == 2


@pytest.mark.parametrize("agent", AGENTS)
def test_in_the_middle_of_a_turn_its_prompt_and_last_step_stay(stage, agent):
    stage.simulator.answer(
        reply(Tool("exec", {"command": "seq 4000"}, id="c1"), input_tokens=500),
        reply(
            Tool("exec", {"command": "echo small"}, id="c2"),
            Tool("exec", {"command": "echo too"}, id="c3"),
            input_tokens=15_000,
        ),
        reply("IN SHORT"),
        reply("Done."),
    )
    result, events = stage.prompt(agent, "do it word for word")
    assert (result.text, result.tool_calls) == ("Done.", 3)
    told = asked(stage, 3)
    for words in ("IN SHORT", "do it word for word", "echo small", "echo too", "stdout:"):
        assert words in told
    assert "seq 4000" not in told
    assert [event.kind for event in events].count("compaction") == 1
    assert len([effect for effect in stage.effects() if effect.startswith("start")]) == 3
    assert stage.simulator.problems == []


def test_a_provider_that_counts_no_tokens_is_estimated(stage):
    stage.simulator.answer(reply("y" * 60_000, usage=False), reply("IN SHORT", usage=False), reply("Fine."))
    stage.prompt("glm", "first")
    _, events = stage.prompt("glm", "second")
    assert [event.kind for event in events].count("compaction") == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_too_long_has_the_conversation_summarised_once_and_the_call_made_again(stage, agent):
    stage.simulator.answer(reply("y" * 3000), TOO_LONG, reply("IN SHORT"), reply("Fine."))
    stage.prompt(agent, "first")
    result, events = stage.prompt(agent, "second")
    assert result.text == "Fine."
    kinds = [event.kind for event in events]
    assert kinds.index("model_fallback") < kinds.index("compaction")
    assert "too long for the model" in texts(events, "model_fallback")
    assert "attempt" in types(stage, agent)
    assert stage.simulator.problems == []


def test_still_too_long_after_the_summary_ends_the_turn_and_the_session_goes_on(stage):
    stage.simulator.answer(reply("y" * 3000), TOO_LONG, reply("IN SHORT"), TOO_LONG, reply("Fine."))
    stage.prompt("claude", "first")
    with pytest.raises(Failed, match="too long for the model"):
        stage.prompt("claude", "second")
    assert stage.prompt("claude", "third")[0].text == "Fine."
    assert types(stage, "claude").count("compaction") == 1


def test_a_summary_that_fails_is_told_and_the_turn_goes_on_as_it_is(stage):
    long = reply("x" * 20_000, input_tokens=12_000)
    stage.simulator.answer(long, Refusal(400, "invalid_request_error", "no"), long, reply(""), reply("Fine."))
    stage.prompt("claude", "first")
    for reason in ("the provider refused the request (400): no", "it wrote no summary"):
        result, events = stage.prompt("claude", "next")
        told = texts(events, "notice")
        assert f"could not be summarised: anthropic/claude-haiku-4-5: {reason}; it goes on as it is" in told
    assert result.text == "Fine."
    assert stage.simulator.problems == []


async def compact(cli, agent="claude", instructions=""):
    events = []
    options = turn_options(agent, "s1", "test")
    async with cli.open("llm.compact", CompactRequest(instructions), **options) as stream:
        async for event in stream:
            events.append(event)
        return await stream.result(), events


def test_an_operator_has_a_session_summarised(stage):
    stage.simulator.answer(reply("one"), reply("IN SHORT"), reply("two"))
    stage.prompt("claude", "first")
    result, events = stage.run(lambda cli: compact(cli, instructions="keep the numbers"))
    assert (result.summary, result.entries) == ("IN SHORT", 2)
    assert [event.kind for event in events] == ["compaction"]
    assert "keep the numbers" in asked(stage, 1)
    stage.prompt("claude", "second")
    assert "IN SHORT" in asked(stage, 2) and "first" not in asked(stage, 2)
    assert stage.simulator.problems == []
    with pytest.raises(NotFound):
        stage.run(lambda cli: compact(cli, "glm"))
    assert not (stage.home.sessions / "glm").exists(), "a session that was asked for is not made"


def test_what_cannot_be_summarised_says_why(stage):
    stage.prompt("demo", "hi")
    with pytest.raises(Failed, match="a script can't summarise"):
        stage.run(lambda cli: compact(cli, "demo"))
    stage.simulator.answer(reply("one"), reply("IN SHORT"))
    stage.prompt("claude", "first")
    stage.run(compact)
    with pytest.raises(Failed, match="nothing to summarise yet"):
        stage.run(compact)


def test_a_summary_under_way_is_cancelled_as_a_prompt_is(stage):
    stage.simulator.answer(reply("one"), Silence(), reply("two"))
    stage.prompt("claude", "first")

    async def steps(cli):
        task = asyncio.create_task(compact(cli))
        await asyncio.to_thread(stage.simulator.wait_for, lambda: len(stage.simulator.requests) == 2)
        done = await cli.call("bus.cancel", Empty(), agent="claude", session="s1")
        with pytest.raises(Cancelled):
            await task
        return done.cancelled

    assert stage.run(steps) == 1
    assert stage.prompt("claude", "second")[0].text == "two"
    assert "compaction" not in types(stage, "claude")
