"""Drills: the sandbox service is killed while a hundred commands run; the engine goes away and comes back.

The engine of this machine is other people's too, so the second drill has one of its own.
"""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from beige.errors import BeigeError, Failed, Unavailable
from beige.messages.base import AgentRef
from tests.docker import private_engine as private

pytestmark = pytest.mark.docker

AGENTS, EACH = ("a", "b", "c", "d"), 25


def records(home):
    return [json.loads(line) for line in home.audit_log.read_text().splitlines()]


def unclosed(home):
    """Calls with a start and no end."""
    phases: dict[str, set[str]] = {}
    for record in records(home):
        phases.setdefault(record["id"], set()).add(record["phase"])
    return [call for call, seen in phases.items() if "finished" not in seen]


async def until(condition, deadline_s=30.0):
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(0.05)


def test_kill_9_of_the_service_during_a_hundred_commands(make_house, sandbox_image, tools):
    def identities(house):
        names = [house.container(name) for name in AGENTS]
        return tools.docker("inspect", "--format", "{{.Id}} {{.State.Pid}} {{.State.Running}}", *names)

    async def during(bus):
        await asyncio.gather(*(tools.out(bus, "echo kept > kept", name) for name in AGENTS))
        calls = [
            asyncio.create_task(tools.bash(bus, "sleep 8801; touch survived", name))
            for name in AGENTS
            for _ in range(EACH)
        ]

        async def all_run():
            counts = [await tools.bash(bus, "pgrep -cf '^sleep 8801'", name) for name in AGENTS]
            return [done.stdout for done in counts] == [b"%d\n" % EACH] * len(AGENTS)

        await until(all_run)
        before = identities(house)
        house.kill("sandbox")
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error).__name__ for error in ended} <= {"PeerLost", "Failed"}
        assert {error.executed for error in ended if isinstance(error, BeigeError)} == {"maybe"}
        assert identities(house) == before

        async def closed():
            return not unclosed(house.home)

        await until(closed)
        return before

    async def after(bus):
        for name in AGENTS:
            left = "cat kept; ls survived; pgrep -f '^sleep 8801'"
            assert (await tools.bash(bus, left, name)).stdout == b"kept\n"

    with make_house({name: tools.agent(sandbox_image) for name in AGENTS}) as house:
        seen = []

        async def drill(bus):
            seen.append(await during(bus))

        house.operate(drill)
        house.start("sandbox")
        house.operate(after)
        assert [identities(house)] == seen
        lost = [r for r in records(house.home) if r["phase"] == "finished" and r.get("error")]
        assert len(lost) >= len(AGENTS) * EACH


@pytest.fixture
def private_engine(sandbox_image):
    if not private.possible():
        pytest.skip("a second engine needs root and dockerd")
    with private.running(sandbox_image) as engine:
        yield engine


def test_the_engine_goes_away_and_comes_back(make_house, sandbox_image, tools, private_engine):
    async def drill(bus):
        assert await tools.out(bus, "echo kept > file; cat file") == "kept\n"

        # A hanging engine delays no command: they do not pass through it.
        private_engine.signal(signal.SIGSTOP)
        try:
            assert await tools.out(bus, "cat file") == "kept\n"
        finally:
            private_engine.signal(signal.SIGCONT)

        running = asyncio.create_task(tools.bash(bus, "echo started > started; sleep 8802"))

        async def started():
            return (await tools.bash(bus, "cat started")).exit_code == 0

        await until(started)
        await asyncio.to_thread(private_engine.stop)
        with pytest.raises(Failed, match="was lost") as caught:
            await running
        assert caught.value.executed == "maybe"
        for _ in range(3):
            with pytest.raises(Unavailable, match="Docker engine can't be reached") as refused:
                await tools.bash(bus, "true")
            assert refused.value.executed == "no"

        await asyncio.to_thread(private_engine.start)
        assert await tools.out(bus, "cat file") == "kept\n"
        info = await bus.call("sandbox.ensure", AgentRef(), agent="travel", ttl_s=60)
        assert (info.state, info.executor) == ("running", "init")
        assert not unclosed(house.home)

    with make_house({"travel": tools.agent(sandbox_image)}, DOCKER_HOST=private_engine.host) as house:
        house.operate(drill)
    assert private_engine.docker("ps", "--all", "--quiet").stdout == ""
