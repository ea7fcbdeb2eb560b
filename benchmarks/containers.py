"""Containers beside Docker's own: made and answering, files of 1 MB, memory at rest, fifty at once."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from beige.bus import Bus
from beige.messages.base import AgentRef
from beige.messages.sandbox import ExecRequest, ReadRequest, WriteRequest
from beige.testing import House
from benchmarks.rig import Row, alternate, row
from services.sandbox.spec import container_name

IMAGE = "beige-sandbox:latest"
AGENTS = tuple(f"agent{number}" for number in range(50))
ROUNDS, FILE_ROUNDS = 5, 7
CREATE_LIMIT, FILE_LIMIT, IDLE_LIMIT_MB = 1.3, 0.2, 2.0
CHUNK = 128 * 1024
PICTURE = b"\x89PNG\r\n\x1a\n" + b"\0" * (1024 * 1024 - 8)
"""1 MiB that `read` gives whole."""
PATH = "/workspace/picture.png"


def run(house: House) -> list[Row]:
    """`house`: broker, policy, audit and sandbox, with the agents AGENTS."""
    with asyncio.Runner() as runner:
        bus = Bus(house.home, "cli/1")
        runner.run(bus.start())
        try:
            bench = Bench(house, bus, runner.run)
            return [bench.create(), *bench.files(), bench.idle(), bench.fifty()]
        finally:
            runner.run(bus.close())


class Bench:
    def __init__(self, house: House, bus: Bus, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._bus, self._run = bus, run
        self._container = container_name(house.home, AGENTS[0])

    def create(self) -> Row:
        def ours() -> float:
            self._run(self._bus.call("sandbox.remove", AgentRef(), agent=AGENTS[0], ttl_s=60))
            return _ms(lambda: self._run(self._true(AGENTS[0])))

        times = alternate({"ours": ours, "docker": self._docker_run_ms}, ROUNDS)
        return row(
            "create to first exec / docker run true", times["ours"], times["docker"], ratio_limit=CREATE_LIMIT
        )

    def files(self) -> list[Row]:
        cat = ["docker", "exec", self._container, "cat", PATH]
        tee = ["docker", "exec", "-i", self._container, "sh", "-c", f"cat >{PATH}"]
        times = alternate(
            {
                "write": lambda: _ms(lambda: self._run(self._write())),
                "docker write": lambda: self._docker_ms(tee, PICTURE),
                "read": lambda: _ms(lambda: self._run(self._read())),
                "docker read": lambda: self._docker_ms(cat),
            },
            FILE_ROUNDS,
        )
        return [
            row(
                f"{what} 1 MB / docker exec cat", times[what], times[f"docker {what}"], ratio_limit=FILE_LIMIT
            )
            for what in ("write", "read")
        ]

    def idle(self) -> Row:
        """Of what runs in the container; Docker's shim is what every container costs."""
        inside = _docker(["docker", "top", self._container, "-o", "pid"]).split()[1:]
        first = int(inside[0])
        ours = sum(_megabytes(int(pid)) for pid in inside)
        shim = _megabytes(int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1]))
        return Row(
            "idle container / its shim (MiB, not ms)", round(ours, 3), round(shim, 3), round(ours / shim, 4),
            f"ours <= {IDLE_LIMIT_MB:g} MiB", ours <= IDLE_LIMIT_MB,
        )  # fmt: skip

    def fifty(self) -> Row:
        """Time per agent; all at once on our side, one after the other on Docker's."""

        async def all_at_once() -> None:
            async with asyncio.TaskGroup() as group:
                for agent in AGENTS:
                    group.create_task(self._true(agent))

        ours = _ms(lambda: self._run(all_at_once())) / len(AGENTS)
        again = _ms(lambda: self._run(all_at_once())) / len(AGENTS)
        assert again < ours, "they answer"
        plain = [self._docker_run_ms() for _ in range(3)]
        return row("50 agents start and answer, each / docker run", [ours] * 3, plain)

    def _docker_ms(self, command: list[str], stdin: bytes = b"") -> float:
        """In a thread, while our loop goes on: the broker takes a peer without heartbeats for dead."""
        return _ms(lambda: self._run(asyncio.to_thread(_docker, command, stdin)))

    def _docker_run_ms(self) -> float:
        return self._docker_ms(["docker", "run", "--rm", IMAGE, "true"])

    async def _true(self, agent: str) -> None:
        done = await self._bus.call("sandbox.exec", ExecRequest(argv=["true"]), agent=agent, ttl_s=300)
        assert done.exit_code == 0

    async def _write(self) -> None:
        body = WriteRequest(PATH, size=len(PICTURE), sha256=hashlib.sha256(PICTURE).hexdigest())
        async with self._bus.open("sandbox.write", body, agent=AGENTS[0]) as stream:
            for start in range(0, len(PICTURE), CHUNK):
                await stream.send(PICTURE[start : start + CHUNK])
            await stream.end()
            await stream.result()

    async def _read(self) -> None:
        call = self._bus.open("sandbox.read", ReadRequest(PATH), agent=AGENTS[0], window_bytes=len(PICTURE))
        async with call as stream:
            seen = b"".join([item async for item in stream])
            assert len(seen) == len(PICTURE) == (await stream.result()).size


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _docker(command: list[str], stdin: bytes = b"") -> bytes:
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


def _megabytes(pid: int) -> float:
    """Proportional set size: memory shared with others counts in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no Pss of {pid}")
