"""A hundred sessions at once on two llm workers, with a provider that takes five calls at a time."""

import asyncio
import json
import threading
from collections import Counter

import pytest

from beige.messages.base import AgentRef
from beige.testing import House, short_home
from tests.processes.llm_stage import Stage, prompt
from tests.simulator.replies import Held, reply
from tests.simulator.server import Simulator

SESSIONS, AGAIN, SLOTS = 100, 10, 5
"""`AGAIN` of the sessions get a second prompt while the first one runs."""
CALLS = SESSIONS + AGAIN


class Provider:
    """What the simulator answers: an echo, once the gate lets it; and what it counted."""

    def __init__(self):
        self.gate, self.used, self.nano = threading.Semaphore(0), Counter(), 0

    def answer(self, request):
        """A different usage each time, so that a sum can't be right by chance."""
        asked = request.body["messages"][-1]["content"]
        number = self.used["calls"] + 1
        usage = {"input_tokens": 100 + number, "output_tokens": 3 * number, "cache_read_tokens": number % 7}
        self.used.update(usage, calls=1)
        self.nano += (
            usage["input_tokens"] * 1000 + usage["output_tokens"] * 4000 + usage["cache_read_tokens"] * 100
        )
        return Held(reply(f"you said {asked}", **usage), self.gate)


@pytest.fixture
def stage():
    provider = Provider()
    with Simulator(provider.answer) as simulator, short_home() as home:
        model = {"provider": "zai", "model": "glm-5", "maxTokens": 2000}
        agent = {"model": model, "tools": [], "sandbox": {"image": "x"}, "budget": {"total": {"usd": 1000}}}
        zai = {"api": "openai-completions", "baseUrl": f"{simulator.url}/v1", "concurrency": SLOTS,
               "models": {"glm-5": {"price": {"input": 1, "output": 4, "cacheRead": 0.1}}}}  # fmt: skip
        home.config.write_text(json.dumps({"llm": {"providers": {"zai": zai}}, "agents": {"crowd": agent}}))
        with House(home) as house:
            stage = Stage(house, simulator)
            stage.provider = provider
            stage.start()
            stage.start("llm/1")
            yield stage


def flow(stage):
    """Let one answer go after the other, and look that its slot is taken again by the next in line."""
    simulator = stage.simulator
    for done in range(CALLS):
        busy = min(SLOTS, CALLS - done)
        simulator.wait_for(lambda: len(simulator.requests) == done + busy and simulator.in_flight == busy, 60)  # noqa: B023
        stage.provider.gate.release()
    simulator.wait_for(lambda: simulator.in_flight == 0)


def test_all_finish_in_order_within_the_slots_and_every_token_is_counted_once(stage):
    names = [f"s{n}" for n in range(SESSIONS)]

    async def steps(cli):
        asked = {name: prompt(cli, "crowd", f"hello from {name}", name) for name in names}
        asked |= {f"{name} again": prompt(cli, "crowd", f"again from {name}", name) for name in names[:AGAIN]}
        flowing = asyncio.create_task(asyncio.to_thread(flow, stage))
        answers = await asyncio.gather(*asked.values())
        await flowing
        report = await cli.call("policy.budget", AgentRef(), agent="crowd")
        return [result for result, _ in answers], report

    results, report = stage.run(steps)
    assert stage.simulator.peak == SLOTS and stage.simulator.problems == []
    assert [result.text for result in results[:SESSIONS]] == [f"you said hello from {name}" for name in names]
    for name in names:
        kinds = [line["type"] for line in stage.session("crowd", name)]
        turn = ["prompt", "context", "assistant", "turn_end"], ["prompt", "assistant", "turn_end"]
        assert kinds[0] == "session"
        assert kinds[1:] in ([*turn[0]], [*turn[1]], [*turn[0], *turn[1]], [*turn[1], *turn[1]]), kinds
    for request in stage.simulator.requests:
        said = [message["content"] for message in request.body["messages"] if message["role"] == "user"]
        assert len({text.rpartition(" ")[2] for text in said}) == 1, "no session heard of another"
    used = stage.provider.used
    assert used["calls"] == CALLS
    (line,) = [line for line in report.lines if line.scope == "total"]
    tokens = used["input_tokens"] + used["output_tokens"] + used["cache_read_tokens"]
    assert (line.used_tokens, line.used_nano, line.reserved_tokens) == (tokens, stage.provider.nano, 0)
    told = Counter()
    for result in results:
        told.update(result.usage)
    assert told == Counter({name: number for name, number in used.items() if name != "calls"})
    recorded = [
        line for line in stage.audit() if line["type"] == "model_call" and line["phase"] == "finished"
    ]
    assert len(recorded) == CALLS and {line["src"] for line in recorded} == {"llm/0", "llm/1"}
    assert sum(sum(line["usage"].values()) for line in recorded) == tokens
