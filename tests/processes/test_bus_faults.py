"""kill -9 of any process while 200 calls are in flight: every call ends, none runs twice, no audit
line is lost or torn, and the house works again when the process is back."""

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from beige.bus import Bus
from beige.errors import BeigeError
from beige.messages.tools import ToolCall

WORKER = str(Path(__file__).with_name("effect_worker.py"))
CALLS = 200


class Rig:
    """Broker, policy, audit and the counting executor; restarts what was killed as it was started."""

    def __init__(self, house):
        self.house = house
        self.effects = house.home.data / "effects"
        for name in ("broker", "policy", "audit", "tools"):
            self.start(name)

    def start(self, name):
        command = [sys.executable, "-P", WORKER, str(self.effects)] if name == "tools" else []
        self.house.start(name, *command)

    def marks(self):
        return self.effects.read_text().split("\n")[:-1] if self.effects.exists() else []

    def records(self):
        return [json.loads(line) for line in self.house.home.audit_log.read_text().splitlines()]


@pytest.fixture
def rig(house):
    return Rig(house)


async def until(condition, limit_s=15.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


def mark(number, verb="mark"):
    return ToolCall(tool="kv", args=[verb, f"m{number}"])


async def outcome(bus, number):
    """What the caller was told: `ok`, or the error's code and whether it may have been executed."""
    try:
        result = await bus.call("tools.call", mark(number), agent="travel", ttl_s=20)
        return "ok" if result.output == f"m{number}" else "WRONG"
    except BeigeError as error:
        return f"{error.code}:{error.executed}"


@pytest.mark.parametrize("victim", ["broker", "policy", "audit", "tools"])
def test_a_killed_process_loses_no_answer_no_record_and_repeats_nothing(rig, victim):
    async def play():
        async with Bus(rig.house.home, "cli/0") as bus:
            calls = [asyncio.ensure_future(outcome(bus, n)) for n in range(CALLS)]
            await until(lambda: len(rig.marks()) >= 20)
            await asyncio.to_thread(rig.house.kill, victim)
            await asyncio.to_thread(rig.start, victim)
            told = await asyncio.wait_for(asyncio.gather(*calls), 60)
            await until(lambda: unfinished(rig.records()) == set())
            after = await asyncio.gather(*(outcome(bus, CALLS + n) for n in range(20)))
            assert set(after) == {"ok"}, "the house works again"
            return told

    told = asyncio.run(play())
    effects = Counter(rig.marks())
    assert max(effects.values()) == 1, "a call ran twice"
    wrong = [(n, answer) for n, answer in enumerate(told) if effects.get(f"m{n}", 0) not in possible(answer)]
    assert wrong == [], "the answer does not say what happened"
    started = {r["args"][1] for r in rig.records() if r["phase"] == "started"}
    assert set(effects) <= started, "a call ran without a record"
    phases = Counter((r["id"], r["phase"]) for r in rig.records())
    assert max(phases.values()) == 1, "a record was written twice"


def possible(answer):
    """How often the call may have run, by what its caller was told."""
    if answer == "ok":
        return {1}
    return {"no": {0}, "maybe": {0, 1}}[answer.partition(":")[2]]


def unfinished(records):
    started = {r["id"] for r in records if r["phase"] == "started"}
    return started - {r["id"] for r in records if r["phase"] == "finished"}


def test_cancelling_reaches_the_executor_and_closes_the_record(rig):
    async def play():
        async with Bus(rig.house.home, "cli/0") as bus:
            call = asyncio.ensure_future(bus.call("tools.call", mark(1, "sleep"), agent="travel", ttl_s=30))
            await until(lambda: "started m1" in rig.marks())
            call.cancel()
            await until(lambda: "cancelled m1" in rig.marks())
            await until(lambda: unfinished(rig.records()) == set())

    asyncio.run(play())
    assert rig.records()[-1]["error"].startswith("cancelled")


def test_the_callers_death_reaches_the_executor(rig):
    script = (
        "import asyncio,sys\nfrom beige.bus import Bus\nfrom beige.paths import Home\n"
        "from beige.messages.tools import ToolCall\n"
        "async def main():\n"
        "    bus = Bus(Home.find(), 'cli/1')\n"
        "    await bus.start()\n"
        "    print('READY', flush=True)\n"
        "    await bus.call('tools.call', ToolCall('kv', ['sleep', 'm1']), agent='travel', ttl_s=50)\n"
        "asyncio.run(main())\n"
    )

    async def play():
        await asyncio.to_thread(rig.house.start, "caller", sys.executable, "-P", "-c", script)
        await until(lambda: "started m1" in rig.marks())
        await asyncio.to_thread(rig.house.kill, "caller")
        await until(lambda: "cancelled m1" in rig.marks())

    asyncio.run(play())


def test_the_deadline_reaches_the_executor(rig):
    async def play():
        async with Bus(rig.house.home, "cli/0") as bus:
            with pytest.raises(BeigeError) as caught:
                await bus.call("tools.call", mark(1, "sleep"), agent="travel", ttl_s=0.5)
            assert (caught.value.code, caught.value.executed) == ("deadline_exceeded", "maybe")
            await until(lambda: "cancelled m1" in rig.marks())

    asyncio.run(play())


@pytest.mark.parametrize("down", ["policy", "audit"])
def test_with_policy_or_audit_stopped_nothing_executes_and_the_caller_gets_unavailable(rig, down):
    rig.house.stop(down)

    async def play():
        async with Bus(rig.house.home, "cli/0") as bus:
            assert await outcome(bus, 1) == "unavailable:no"
            assert rig.marks() == []
            await asyncio.to_thread(rig.start, down)
            assert await outcome(bus, 2) == "ok"

    asyncio.run(play())
    assert rig.marks() == ["m2"]


def test_a_denied_call_is_one_record_and_no_effect(rig):
    async def play():
        async with Bus(rig.house.home, "cli/0") as bus:
            with pytest.raises(BeigeError) as caught:
                await bus.call("tools.call", mark(1), agent="idle")
            assert str(caught.value) == "Permission denied: tool 'kv' not allowed for agent 'idle'"

    asyncio.run(play())
    assert rig.marks() == []
    (record,) = rig.records()
    assert (record["decision"], record["phase"], record["agent"]) == ("denied", "finished", "idle")


def test_a_stopped_executor_is_noticed_within_its_heartbeats(rig):
    import os
    import signal

    async def play():
        async with Bus(rig.house.home, "cli/0") as bus:
            pid = rig.house.processes["tools"].pid
            call = asyncio.ensure_future(outcome(bus, 1))
            assert await call == "ok"
            sleeping = asyncio.ensure_future(
                bus.call("tools.call", mark(2, "sleep"), agent="travel", ttl_s=50)
            )
            await until(lambda: "started m2" in rig.marks())
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(BeigeError) as caught:
                    await asyncio.wait_for(sleeping, 20)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert (caught.value.code, caught.value.executed) == ("peer_lost", "maybe")
            assert await outcome(bus, 3) == "ok", "it comes back by itself"

    asyncio.run(play())


def test_without_a_broker_a_call_ends_unavailable_long_before_its_deadline(rig):
    async def play():
        async with Bus(rig.house.home, "cli/0") as bus:
            assert await outcome(bus, 1) == "ok"
            await asyncio.to_thread(rig.house.kill, "broker")
            with pytest.raises(BeigeError) as caught:
                await asyncio.wait_for(bus.call("tools.call", mark(2), agent="travel", ttl_s=600), 30)
            assert (caught.value.code, caught.value.executed) in [
                ("unavailable", "no"),
                ("peer_lost", "maybe"),
            ]
            with pytest.raises(BeigeError) as caught:
                await asyncio.wait_for(bus.call("tools.call", mark(3), agent="travel", ttl_s=600), 30)
            assert (caught.value.code, caught.value.executed) == ("unavailable", "no")

    asyncio.run(play())
    assert rig.marks() == ["m1"]
