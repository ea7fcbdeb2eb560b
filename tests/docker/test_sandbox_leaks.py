"""Thousands of commands leave nothing behind: no descriptor, process or memory, in us or in the container."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from beige.errors import BeigeError
from beige.messages.sandbox import ExecRequest, ReadRequest, WriteRequest

pytestmark = pytest.mark.docker
SERVICES = ("broker", "policy", "audit", "sandbox")
ROUNDS, AT_ONCE = 100, 16
MOST_GROWTH_KIB = 24 * 1024
"""A kilobyte per command would be twice as much and more; an allocator's arenas are less."""


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_kib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def test_thousands_of_commands_leave_nothing(make_house, sandbox_image, tools):
    async def one_round(bus, number):
        """Sixteen calls at once, each of another kind of end."""

        async def cancelled():
            body = ExecRequest("echo up; setsid sleep 8821 & sleep 8821")
            async with bus.open("sandbox.exec", body, agent="travel") as stream:
                await anext(aiter(stream))

        async def fails(method, body):
            with contextlib.suppress(BeigeError):
                await bus.call(method, body, agent="travel")

        calls = [
            tools.bash(bus, "exit 3"),
            tools.bash(bus, "(setsid true &) ; kill -9 $$"),
            tools.bash(bus, "cat", stdin=b"x" * 10_000),
            tools.bash(bus, "head -c 400000 /dev/zero"),
            fails("sandbox.exec", ExecRequest(argv=["no-such-program"])),
            fails("sandbox.read", ReadRequest("nothing")),
            bus.call("sandbox.write", WriteRequest(f"f{number % 4}", b"x"), agent="travel"),
        ]
        if number % 10 == 0:
            calls += [cancelled(), tools.bash(bus, "sleep 8821", timeout_s=0.05)]
        calls += [tools.bash(bus, "true") for _ in range(AT_ONCE - len(calls))]
        await asyncio.gather(*calls)

    async def settled(bus):
        async with asyncio.timeout(30):
            while (await tools.bash(bus, "pgrep -f '^sleep 8821'")).exit_code != 1:
                await asyncio.sleep(0.05)

    with make_house({"travel": tools.agent(sandbox_image)}) as house:

        def seen():
            first = int(tools.docker("inspect", "--format", "{{.State.Pid}}", house.container("travel")))
            pids = {name: house.processes[name].pid for name in SERVICES} | {"init": first}
            inside = tools.docker("top", house.container("travel"), "-o", "pid").split()[1:]
            counts = {name: descriptors(pid) for name, pid in pids.items()} | {
                "processes inside": len(inside)
            }
            return counts, {name: memory_kib(pid) for name, pid in pids.items()}

        async def test(bus):
            for number in range(20):
                await one_round(bus, number)
            await settled(bus)
            before = await asyncio.to_thread(seen)
            for number in range(ROUNDS):
                await one_round(bus, number)
            await settled(bus)
            counts, memory = await asyncio.to_thread(seen)
            assert counts == before[0]
            grown = {name: memory[name] - before[1][name] for name in memory}
            assert max(grown.values()) < MOST_GROWTH_KIB, grown
            assert await tools.out(bus, "ls -A; ls -A /tmp") == "f0\nf1\nf2\nf3\n"

        house.operate(test)
