"""What real llm workers spend, as the simulator counts it: budgets, the audit log, and kills of policy."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading

import pytest

from beige.errors import Failed
from beige.messages.policy import LeaseReport, Usage
from beige.testing import House, short_home
from services.llm.models.leases import Leases
from tests.processes.lease_worker import with_workers
from tests.processes.llm_stage import Stage, prompt
from tests.simulator.replies import Fault, Held, Refusal, reply
from tests.simulator.server import Simulator

PRICE = {"price": {"input": 1, "output": 4, "cacheRead": 0.1}}
PRICES = {"glm-5": PRICE, "narrow": PRICE}
SECOND = {"provider": "zai", "model": "second"}


def config(url):
    def agent(max_tokens=4000, **more):
        model = {"provider": "zai", "model": "glm-5", "maxTokens": max_tokens}
        return {"model": model, "tools": [], "sandbox": {"image": "x"}} | more

    zai = {"api": "openai-completions", "baseUrl": f"{url}/v1", "models": PRICES}
    agents = {
        "small": agent(budget={"session": {"tokens": 20_000, "soft": 0.5}}),
        "poor": agent(budget={"day": {"usd": 0.05}}),
        "pair": agent(fallbackModels=[SECOND]),
        "limited": agent() | {"model": {"provider": "zai", "model": "narrow"}},
        "shared": agent(budget={"day": {"tokens": 60_000}}),
        "hurried": agent(1000, budget={"total": {"tokens": 10**9}}),
    }
    return {"llm": {"providers": {"zai": zai}}, "agents": agents}


@pytest.fixture(scope="module")
def running():
    with Simulator() as simulator, short_home() as home:
        home.config.write_text(json.dumps(config(simulator.url)))
        with House(home) as house:
            stage = Stage(house, simulator)
            stage.start()
            yield stage


@pytest.fixture
def stage(running):
    running.simulator.reset()
    yield running
    assert running.simulator.problems == []


def beige(stage, *arguments):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=os.environ | {"BEIGE_HOME": str(stage.home.root)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def accounts(stage, *arguments):
    code, out, err = beige(stage, "budget", *arguments, "--json")
    assert code in (0, 1), err
    return code, {
        (found["scope"], found["agent"], found["session"]): found for found in json.loads(out)["accounts"]
    }


def model_calls(stage, agent, phase="finished"):
    return [
        line
        for line in stage.audit()
        if (line["agent"], line["type"], line["phase"]) == (agent, "model_call", phase)
    ]


def notices(events):
    return [event.text for event in events if event.kind == "notice" and "budget" in event.text]


def test_a_session_is_warned_cut_short_and_refused(stage):
    stage.simulator.answer(
        reply("one", input_tokens=12_000, output_tokens=2000), reply("two", input_tokens=3_000),
        reply("three", input_tokens=1_500, output_tokens=2_000), reply("of another session"),
    )  # fmt: skip
    result, events = stage.prompt("small", "first", "a")
    assert result.usage == {"input_tokens": 12_000, "output_tokens": 2000} and not notices(events)
    result, events = stage.prompt("small", "second", "a")
    (warning,) = notices(events)
    assert warning.startswith("budget: this session of agent 'small' has used 14,000 tokens of 20,000 tokens")
    stage.prompt("small", "third", "a")
    longest = [request.body["max_tokens"] for request in stage.simulator.requests]
    assert longest[:2] == [4000, 4000] and 1024 <= longest[2] < 3000, "only a short answer still fits"
    with pytest.raises(Failed, match=r"Budget exceeded: this session of agent 'small' may use 20,000 tokens "
                                     r"and has used 20,5\d\d tokens; .*a new session begins"):  # fmt: skip
        stage.prompt("small", "fourth", "a")
    assert len(stage.simulator.requests) == 3, "the provider was not asked"
    assert stage.prompt("small", "x", "b")[0].text == "of another session"
    denied = model_calls(stage, "small")[-2]
    assert (denied["decision"], denied["kind"], denied["session"]) == ("denied", "over_budget", "a")
    assert denied["error"].startswith("Budget exceeded: this session") and "usage" not in denied
    code, found = accounts(stage, "small", "--session", "a")
    line = found["session", "small", "a"]["tokens"]
    assert code == 1 and (line["limit"], line["left"], line["reserved"]) == (20_000, 0, 0)
    assert line["used"] > 20_000
    code, found = accounts(stage, "small")
    assert found["session", "small", "b"]["tokens"]["used"] == 40 and found["day", "small", None]["resets"]


def test_money_is_counted_to_the_nano_dollar_and_shown(stage):
    stage.simulator.answer(reply("x", input_tokens=1001, output_tokens=103, cache_read_tokens=7))
    result, events = stage.prompt("poor", "hello")
    nano = 1001 * 1000 + 103 * 4000 + 7 * 100
    (told,) = [event.cost for event in events if event.kind == "message_end"]
    assert result.cost == told == nano / 1e9
    (line,) = [line for line in stage.session("poor", "s1") if line["type"] == "assistant"]
    assert line["cost_nano"] == nano
    assert model_calls(stage, "poor")[-1]["costUsd"] == nano / 1e9
    code, found = accounts(stage, "poor")
    assert code == 0 and found["day", "poor", None]["usd"]["used"] == nano / 1e9
    code, out, _ = beige(stage, "budget", "poor")
    assert code == 0 and "1,111 tokens" in out and "$0.0014" in out and "$0.0500" in out
    code, out, _ = beige(stage, "audit", "query", "--type", "model_call", "--agent", "poor")
    assert code == 0 and "zai/glm-5" in out and "ok, 1,008 tokens in, 103 out, $0.0014" in out


def test_each_attempt_is_recorded_before_it_is_made_with_its_reason(stage):
    stage.simulator.answer(
        Refusal(529, "overloaded_error", "Overloaded"),
        reply("half an answer", fault=Fault("cut", 3)),
        reply("done", output_tokens=9),
    )
    stage.prompt("pair", "hello", "tried")
    started, finished = (model_calls(stage, "pair", phase) for phase in ("started", "finished"))
    assert [line["args"] for line in started] == [["zai/glm-5"], ["zai/second"], ["zai/glm-5"]]
    assert [line["id"] for line in started] == [line["id"] for line in finished]
    told = [(line.get("kind"), line.get("status"), line.get("error")) for line in finished]
    assert told == [
        ("overloaded", 529, "overloaded (529)"), ("stream_cut", None, "stream_cut"), (None, None, None),
    ]  # fmt: skip
    assert "usage" not in finished[0] and finished[0]["costUsd"] == 0
    assert finished[1]["usage"]["input_tokens"] > 500, "what broke off is estimated, never free"
    assert "costUsd" not in finished[1], "it has no price"
    assert finished[2]["usage"] == {"input_tokens": 25, "output_tokens": 9}
    prompts = {line["call"] for line in stage.session("pair", "tried") if line["type"] == "prompt"}
    assert {line["parent"] for line in finished} == prompts


def test_a_model_that_cools_down_is_recorded_as_not_called(stage):
    stage.simulator.answer(Refusal(429, "rate_limit_error", "slow", headers={"retry-after": "500"}))
    for _ in range(2):
        with pytest.raises(Failed, match=r"rate limited|cooling down"):
            stage.prompt("limited", "hello")
    called, refused = model_calls(stage, "limited")
    assert (called["kind"], called["status"], called["costUsd"]) == ("rate_limited", 429, 0)
    assert (refused["kind"], refused["decision"]) == ("rate_limited", "allowed") and "status" not in refused
    assert refused["error"].startswith("cooling down after a rate limit")
    assert len(stage.simulator.requests) == 1


def test_calls_at_once_cannot_pass_a_limit_together(stage):
    """Each may write 4,000 tokens, and 60,000 are left: those that don't fit at once wait, and in the end
    what was really used is what is refused over."""
    gate = threading.Semaphore(0)
    answer = reply("x", input_tokens=2000, output_tokens=3000)
    stage.simulator.answer(*[Held(answer, gate)] * 24)
    reserved = []

    async def steps(cli):
        waits = asyncio.Event()

        def seen(event):
            if event.kind == "notice" and event.text.startswith("waiting for calls under way"):
                waits.set()

        asked = [asyncio.create_task(prompt(cli, "shared", "x", f"at-once-{n}", seen)) for n in range(24)]
        await waits.wait()
        reserved.append(await asyncio.to_thread(accounts, stage, "shared"))
        for _ in range(24):
            gate.release()
        return await asyncio.gather(*asked, return_exceptions=True)

    results = stage.run(steps)
    answered = [found for found in results if not isinstance(found, BaseException)]
    refused = [str(found) for found in results if isinstance(found, BaseException)]
    line = reserved[0][1]["day", "shared", None]["tokens"]
    assert line["used"] == 0 and 40_000 < line["reserved"] <= 60_000
    line = accounts(stage, "shared")[1]["day", "shared", None]["tokens"]
    assert line["used"] == 5000 * len(answered) <= 60_000 and line["reserved"] == 0
    assert len(answered) >= 11 and refused and all("Budget exceeded" in text for text in refused)
    assert stage.simulator.peak * 5000 <= 60_000


# --- kills ------------------------------------------------------------------------------------------

KILLS = 6
RESERVED = 1000
"""`maxTokens` of the agent, and no input: each call reports a single token, so that the sum tells both."""


def test_kills_of_policy_lose_nothing_and_count_nothing_twice(stage, caplog):
    """Workers that report each call go on while policy is killed at random; each call is in the sum once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, house = random.Random(seed), stage.house
    house.kill("llm")
    over, granted = asyncio.Event(), []

    async def spend(request):
        """One prompt after the other's leases, by the llm service's own code."""

        async def notice(text):
            pass

        leases = Leases(request, notice)
        while not over.is_set():
            async with leases.take("zai", "glm-5") as lease:
                granted.append(request.call_name)
                await asyncio.sleep(chance.random() * 0.05)
                await lease.report(LeaseReport("answered", usage=Usage(1)))

    async def kill():
        try:
            for _ in range(KILLS):
                before = len(granted)
                while len(granted) < before + chance.randrange(1, 30):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(chance.random() * 0.02)
                await asyncio.to_thread(house.kill, "policy")
                await asyncio.to_thread(house.start, "policy")
        finally:
            over.set()

    async def play(p):
        await asyncio.gather(kill(), *[p.ask(spend, "hurried", f"s{n}") for n in range(4)])
        while (line := await p.account("hurried", "total")).reserved_tokens:
            await asyncio.sleep(0.2)  # a lease whose grant was lost with policy is kept for ten seconds
        reported, unreported = line.used_tokens % RESERVED, line.used_tokens // RESERVED
        given_up = sum("report was not taken" in record.message for record in caplog.records)
        assert len(granted) < RESERVED
        assert len(granted) - given_up <= reported <= len(granted), "nothing is lost, nothing counts twice"
        assert unreported <= given_up + 4 * KILLS, "only leases that a kill cut off are charged unreported"

    try:
        with_workers(house, play)
    finally:
        stage.start("llm")
