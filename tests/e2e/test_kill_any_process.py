"""kill -9 of any one process during 200 concurrent tool calls through the agent's socket: every call
is answered (or its connection ends, where the bridge itself died), none runs twice, no audit line is
lost or torn, and supervisord brings the process back."""

import asyncio
import json
import os
import signal
import time
from collections import Counter

import pytest

pytestmark = pytest.mark.docker
CALLS, CONNECTIONS = 200, 20
VICTIMS = ["broker", "policy", "audit", "tools", "egress", "bridge", "sandbox", "llm", "tap", "gateway"]


async def until(condition, limit_s=30.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


async def client(path, marks):
    """One connection with pipelined requests; what it was told per mark: `ok`, an error, or `eof`."""
    told = {}
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return dict.fromkeys(marks, "eof")
    try:
        for mark in marks:
            writer.write(
                json.dumps({"type": "tool_request", "tool": "mark", "args": [mark]}).encode() + b"\n"
            )
        for mark in marks:
            line = await reader.readline()
            if not line:
                break
            answer = json.loads(line)
            told[mark] = "ok" if answer["success"] else answer["error"]
            assert not answer["success"] or answer["output"] == mark
    except OSError:
        pass
    finally:
        writer.close()
    return {mark: told.get(mark, "eof") for mark in marks}


async def storm(path, prefix, calls=CALLS):
    each = calls // CONNECTIONS
    groups = [[f"{prefix}-{c}-{n}" for n in range(each)] for c in range(CONNECTIONS)]
    answers = await asyncio.wait_for(asyncio.gather(*(client(path, group) for group in groups)), 90)
    return {mark: told for group in answers for mark, told in group.items()}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_loses_and_repeats_nothing_and_comes_back(supervised, victim):
    path = str(supervised.home.gateway_socket("travel"))

    async def play():
        before = supervised.pid(victim)
        calls = asyncio.ensure_future(storm(path, victim))
        await until(lambda: any(mark.startswith(f"{victim}-") for mark in supervised.marks()))
        os.kill(before, signal.SIGKILL)
        told = await calls
        await until(lambda: supervised.state(victim) == "RUNNING" and supervised.pid(victim) != before)
        await works_again(path, victim)
        return told

    told = asyncio.run(play())
    effects = Counter(mark for mark in supervised.marks() if mark in told)
    assert len(told) == CALLS
    assert max(effects.values()) == 1, "a call ran twice"
    assert not [m for m, answer in told.items() if answer == "ok" and not effects[m]], "answered, never ran"
    if victim != "bridge":
        assert "eof" not in told.values(), "a call without an answer"
    if victim in ("sandbox", "llm", "egress", "tap", "gateway"):
        assert set(told.values()) == {"ok"}, "its death is not the tools' business"
    check_log(supervised, told, effects)


async def works_again(path, victim):
    for attempt in range(20):
        told = await storm(path, f"{victim}-after{attempt}", calls=CONNECTIONS)
        if set(told.values()) == {"ok"}:
            return
        await asyncio.sleep(0.5)
    pytest.fail(f"the house does not work again: {Counter(told.values())}")


def check_log(supervised, told, effects):
    """Every effect has its started record, every started its finished one, none twice."""
    mine = [r for r in supervised.records() if r["args"][0] in told]
    phases = Counter((r["id"], r["phase"]) for r in mine)
    assert max(phases.values()) == 1
    started = {r["id"]: r["args"][0] for r in mine if r["phase"] == "started"}
    assert set(effects) <= set(started.values()), "a call ran without a record"
    assert set(started) <= {r["id"] for r in mine if r["phase"] == "finished"}, "a record was never closed"
