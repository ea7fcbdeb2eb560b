"""Models that fail, cool down and are waited for: real llm workers, policy and SDKs, the simulator.

Numbers and rules are the seed's (Model Fallback, Provider Concurrency Limits).
"""

import asyncio
import contextlib
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from beige.errors import Failed, PeerLost
from beige.testing import House, short_home
from tests.processes.llm_stage import KEYS, Stage, prompt, texts
from tests.simulator.replies import Fault, Held, Refusal, Silence, Tool, reply
from tests.simulator.server import Simulator

CLAUDE, GLM = "anthropic/claude-haiku-4-5", "zai/glm-5"
OVERLOADED = Refusal(529, "overloaded_error", "Overloaded")


def in_90_s():
    return format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)


LIMITS = {
    "seconds": (lambda: Refusal(429, "rate_limit_error", "slow", headers={"retry-after": "70"}), 70),
    "date": (lambda: Refusal(429, "rate_limit_error", "slow", headers={"retry-after": in_90_s()}), 90),
    "ms": (lambda: Refusal(429, "rate_limit_error", "slow", headers={"retry-after-ms": "80000"}), 80),
    "fraction": (lambda: Refusal(429, "rate_limit_error", "slow", headers={"retry-after": "70.5"}), 70.5),
    "century": (lambda: Refusal(429, "rate_limit_error", "slow", headers={"retry-after": "3e9"}), 86400),
    "words": (lambda: Refusal(429, "rate_limit_error", "slow", headers={"retry-after": "soon"}), 300),
    "none": (lambda: Refusal(429, "rate_limit_error", "slow"), 300),
    "soft": (lambda: reply("x", fault=Fault("error_event", 0, "rate_limit_error", "Too many requests")), 60),
}
"""How a rate limit is told, and the seconds of cooldown it means."""


def config(url):
    def agent(provider, model, *fallbacks):
        refs = [{"provider": provider, "model": model} for provider, model in fallbacks]
        return {"model": {"provider": provider, "model": model}, "fallbackModels": refs, "tools": [],
                "sandbox": {"image": "x"}}  # fmt: skip

    glm = ("zai", "glm-5")
    agents = {f"limited-{kind}": agent("anthropic", f"model-{kind}", glm) for kind in LIMITS}
    agents |= {
        "pair": agent("anthropic", "claude-haiku-4-5", glm),
        "lone": agent("anthropic", "claude-haiku-4-5"),
        "short": agent("anthropic", "model-short", glm),
        "long": agent("anthropic", "model-long", glm),
        "queue": agent("two", "m"),
        "single": agent("one", "m"),
    }
    local = {"api": "openai-completions", "baseUrl": f"{url}/v1"}
    providers = {
        "anthropic": {"apiKey": "${ANTHROPIC_API_KEY}", "baseUrl": url},
        "zai": local | {"apiKey": "${ZAI_API_KEY}"},
        "two": local | {"concurrency": 2},
        "one": local | {"concurrency": 1},
    }
    return {"llm": {"providers": providers}, "agents": agents}


@pytest.fixture(scope="module")
def running():
    with Simulator() as simulator, short_home() as home:
        home.config.write_text(json.dumps(config(simulator.url)))
        with House(home) as house:
            stage = Stage(house, simulator)
            stage.start()
            stage.start("llm/1")
            yield stage


@pytest.fixture
def stage(running):
    """Everything runs, with two llm workers; what a test killed is started again."""
    running.simulator.reset()
    for name in ("policy", "llm", "llm/1"):
        if name not in running.house.processes:
            running.start(name)
    yield running
    assert running.simulator.problems == []


def asked(stage):
    return [request.body["model"] for request in stage.simulator.requests]


def fallbacks(events):
    return [(event.model, event.text) for event in events if event.kind == "model_fallback"]


def health(stage):
    path = stage.home.data / "provider-health.json"
    return (
        {e["model"]: e["coolingUntil"] for e in json.loads(path.read_text())["models"]}
        if path.exists()
        else {}
    )


def test_an_overloaded_primary_is_stood_in_for_and_asked_first_again_by_the_next_prompt(stage):
    stage.simulator.answer(OVERLOADED, reply("from glm"), reply("from claude"))
    result, events = stage.prompt("pair", "one", "overloaded")
    assert (result.text, result.model) == ("from glm", GLM)
    assert fallbacks(events) == [
        (GLM, f"{CLAUDE}: the provider is overloaded (529): Overloaded; trying with {GLM}")
    ]
    result, events = stage.prompt("pair", "two", "overloaded")
    assert (result.text, result.model, fallbacks(events)) == ("from claude", CLAUDE, [])
    assert "claude-haiku-4-5" not in health(stage), "an overload cools nobody down"
    (attempt,) = [line for line in stage.session("pair", "overloaded") if line["type"] == "attempt"]
    assert (attempt["model"], attempt["kind"]) == (CLAUDE, "overloaded")
    assert '"next": "zai/glm-5"' in stage.house.log("llm") + stage.house.log("llm/1")


def test_two_overloaded_models_are_tried_three_times_each_and_the_reason_is_told(stage):
    stage.simulator.answer(*[OVERLOADED] * 6, reply("never"))
    with pytest.raises(Failed) as raised:
        stage.prompt("pair", "one", "exhausted")
    assert asked(stage) == ["claude-haiku-4-5", "glm-5"] * 3
    for label in (CLAUDE, GLM):
        assert f"{label}: the provider is overloaded (529): Overloaded (3 times)" in str(raised.value)
    assert stage.session("pair", "exhausted")[-1]["outcome"] == "failed"


def test_a_refused_key_spends_no_pass(stage):
    stage.simulator.answer(Refusal(401), OVERLOADED, reply("from glm"))
    assert stage.prompt("pair", "one", "key")[0].text == "from glm"
    assert asked(stage) == ["claude-haiku-4-5", "glm-5", "glm-5"]


def test_an_answer_that_broke_off_is_replaced_and_its_tools_never_run(stage):
    tool = Tool("exec", {"command": "echo one"}, id="c1")
    stage.simulator.answer(reply("half an answer", tool, fault=Fault("cut", 8)), reply("Whole."))
    result, events = stage.prompt("lone", "one", "cut")
    assert result.text == "Whole." and asked(stage) == ["claude-haiku-4-5"] * 2
    ((model, text),) = fallbacks(events)
    assert model == CLAUDE and "broke off" in text and text.endswith("the answer begun above is void")
    at = [event.kind for event in events].index("model_fallback")
    assert "half an answer".startswith(texts(events[:at])) and texts(events[:at])
    assert texts(events[at:]) == "Whole."
    lines = stage.session("lone", "cut")
    assert [line["text"] for line in lines if line["type"] == "attempt"] == [texts(events[:at])]
    assert sum(line["type"] == "assistant" for line in lines) == 1
    assert not [effect for effect in stage.effects() if effect.startswith("start")]


@pytest.mark.parametrize("kind", LIMITS)
def test_a_rate_limit_cools_the_model_down_for_everybody(stage, kind):
    refusal, seconds = LIMITS[kind]
    before = time.time()
    stage.simulator.answer(refusal(), reply("from glm"), reply("from glm"))
    assert stage.prompt(f"limited-{kind}", "one")[0].model == GLM
    assert before + seconds - 2 <= health(stage)[f"model-{kind}"] <= time.time() + seconds
    result, events = stage.prompt(f"limited-{kind}", "two", "s2")
    assert result.model == GLM and "cooling down" in fallbacks(events)[0][1]
    assert asked(stage) == [f"model-{kind}", "glm-5", "glm-5"]


def test_a_cooldown_outlives_policy_and_holds_for_each_worker(stage):
    stage.house.stop("llm/1")
    limit = Refusal(429, "rate_limit_error", "slow", headers={"retry-after": "3600"})
    stage.simulator.answer(limit, reply("one"), reply("two"))
    assert stage.prompt("long", "one")[0].model == GLM
    stage.house.kill("policy")
    stage.start("policy", "llm/1")
    stage.house.stop("llm")
    assert stage.prompt("long", "two", "s2")[0].model == GLM
    assert asked(stage) == ["model-long", "glm-5", "glm-5"]


def test_a_cooldown_ends_by_itself_and_the_primary_is_asked_first_again(stage):
    limit = Refusal(429, "rate_limit_error", "slow", headers={"retry-after": "1.5"})
    stage.simulator.answer(limit, reply("one"), reply("back"))
    assert stage.prompt("short", "one")[0].model == GLM
    time.sleep(max(0.0, health(stage)["model-short"] - time.time()))  # the time is what is tested
    result, events = stage.prompt("short", "two", "s2")
    assert (result.text, result.model, fallbacks(events)) == ("back", "anthropic/model-short", [])


# --- concurrency ------------------------------------------------------------------------------------


class Line:
    """Prompts to one agent, started one after the other; each has its slot or its place in the line."""

    def __init__(self, stage, cli, agent, prefix="line"):
        self.stage, self.cli, self.agent, self.prefix = stage, cli, agent, prefix
        self.tasks = {}

    async def join(self, name):
        waiting = asyncio.Event()
        before = len(self.stage.simulator.requests)

        def seen(event):
            if event.kind == "notice" and event.text.startswith("waiting"):
                waiting.set()

        self.tasks[name] = asyncio.create_task(
            prompt(self.cli, self.agent, name, f"{self.prefix}-{name}", seen)
        )
        arrived = asyncio.to_thread(self.requests_are, before + 1)
        queued = asyncio.create_task(waiting.wait())
        called = asyncio.create_task(arrived)
        done, _ = await asyncio.wait([queued, called], return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert done, f"{name} neither called nor waits"
        queued.cancel()
        return "waits" if waiting.is_set() else "calls"

    def requests_are(self, number):
        with contextlib.suppress(TimeoutError):
            self.stage.simulator.wait_for(lambda: len(self.stage.simulator.requests) >= number, 20)

    async def results(self, *names):
        return [(await self.tasks[name])[0].text for name in names]

    def order(self):
        """Names of the prompts in the order their calls arrived."""
        return [request.body["messages"][-1]["content"] for request in self.stage.simulator.requests]


def test_a_providers_concurrency_holds_over_workers_and_is_served_in_order(stage):
    gate = threading.Semaphore(0)
    names = [f"p{n}" for n in range(6)]
    stage.simulator.answer(*[Held(reply(f"answer {n}"), gate) for n in range(6)])

    async def steps(cli):
        line = Line(stage, cli, "queue")
        assert [await line.join(name) for name in names] == ["calls"] * 2 + ["waits"] * 4
        for served in range(3, 7):
            gate.release()
            await asyncio.to_thread(line.requests_are, served)
        gate.release(6)
        await line.results(*names)
        return line.order()

    assert stage.run(steps) == names
    assert stage.simulator.peak == 2
    files = [stage.session("queue", f"line-{name}")[-1]["outcome"] for name in names]
    assert files == ["answered"] * 6


def test_a_cancelled_waiter_leaves_the_line(stage):
    gate = threading.Semaphore(0)
    stage.simulator.answer(Held(reply("a"), gate), reply("c"))

    async def steps(cli):
        line = Line(stage, cli, "single")
        assert [await line.join(name) for name in "abc"] == ["calls", "waits", "waits"]
        line.tasks["b"].cancel()
        await asyncio.wait([line.tasks["b"]])
        gate.release()
        assert await line.results("a", "c") == ["a", "c"]
        return line.order()

    assert stage.run(steps) == ["a", "c"]
    assert stage.simulator.peak == 1


def test_a_killed_workers_slot_comes_back(stage):
    stage.house.stop("llm/1")
    stage.simulator.answer(Silence(), reply("second"))

    async def steps(cli):
        line = Line(stage, cli, "single")
        assert await line.join("first") == "calls"
        await asyncio.to_thread(stage.start, "llm/1")
        assert await line.join("second") == "waits"
        await asyncio.to_thread(stage.house.kill, "llm")
        with pytest.raises(PeerLost):
            await line.tasks["first"]
        return await line.results("second")

    assert stage.run(steps) == ["second"]


def unreported(stage, session):
    """How often the session was charged for a call that nobody reported."""
    lines = [json.loads(line) for line in stage.house.log("policy").splitlines() if line.startswith("{")]
    return sum(line.get("session") == session and "nobody reported" in line["msg"] for line in lines)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restarted_policy_keeps_the_slots_of_answers_under_way(stage, end):
    """Who waited waits on, and is served when the slot of the answer that outlived policy is free."""
    gate = threading.Semaphore(0)
    stage.simulator.answer(Held(reply("first"), gate), reply("later"), reply("later"))

    async def steps(cli):
        line = Line(stage, cli, "single", end)
        assert [await line.join(name) for name in ("first", "second")] == ["calls", "waits"]
        assert await asyncio.to_thread(getattr(stage.house, end), "policy") in (0, None)
        await asyncio.to_thread(stage.start, "policy")
        assert await line.join("third") == "waits", "the slot is taken, as the answer is under way"
        gate.release()
        return line.order(), await line.results("first", "second", "third")

    asked, answers = stage.run(steps)
    assert asked == ["first"] and answers == ["first", "later", "later"]
    assert stage.simulator.peak == 1
    assert unreported(stage, f"{end}-first") == 0, "the lease was taken up again and settled"


def test_the_slots_of_workers_that_are_gone_are_free_again(stage):
    """policy and the llm worker die together: nobody takes the lease up, after a while it is charged."""
    gate = threading.Semaphore(0)
    stage.simulator.answer(Held(reply("lost"), gate), reply("second"))

    async def steps(cli):
        line = Line(stage, cli, "single", "gone")
        assert await line.join("first") == "calls"
        for name in ("policy", "llm", "llm/1"):
            await asyncio.to_thread(stage.house.kill, name)
        with pytest.raises(PeerLost):
            await line.results("first")
        await asyncio.to_thread(stage.start, "llm", "llm/1", "policy")
        assert await line.join("second") == "waits"
        return await line.results("second")

    assert stage.run(steps) == ["second"]
    gate.release()
    assert unreported(stage, "gone-first") == 1


def test_no_key_was_written_anywhere(stage):
    written = [path for path in stage.home.root.rglob("*") if path.is_file() and "keys" not in path.parts]
    assert not [path for path in written for key in KEYS.values() if key.encode() in path.read_bytes()]
