"""`exec true` through the whole corridor beside `docker exec`, and a tool call from inside the container
beside a bare process spawn there. A real engine, a real container."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import docker

from beige.bus import Bus
from beige.messages.sandbox import ExecRequest, ExecResult
from beige.testing import House
from benchmarks.peers import p99
from benchmarks.rig import Peer, Row, alternate, row
from services.sandbox.spec import container_name

AGENT = "travel"
ROUNDS = 7
OURS = {"method": "sandbox.exec", "agent": AGENT, "count": 20, "concurrency": 1}
DOCKER_CALLS = 3
EXEC_LIMIT, SLOWEST_LIMIT = 0.05, 0.1
SLOWEST_CALLS, SLOWEST_ROUNDS = 100, 3
"""As many on both sides: a 99th percentile of fewer values is a smaller one."""
SLOWEST = {"method": "sandbox.exec", "agent": AGENT, "count": SLOWEST_CALLS, "concurrency": 1}
TOOL_LIMIT_MS = 5.0


def run(house: House) -> list[Row]:
    """`house`: everything but llm runs in it."""
    asyncio.run(_exec(house, "kv set bench value"))  # starts the container, too
    return [*_exec_rows(house), _tool_row(house)]


def _exec_rows(house: House) -> list[Row]:
    name = container_name(house.home, AGENT)
    client = docker.from_env()
    try:
        container = client.containers.get(name)
        with Peer("bus-caller", "cli/0", home=house.home.root) as bus:
            times = alternate(
                {
                    "ours": lambda: float(bus.ask(**OURS)["p50_ms"]),
                    "cli": lambda: _median_ms(lambda: _docker_exec(name)),
                    "sdk": lambda: _median_ms(lambda: container.exec_run(["true"])),
                },
                ROUNDS,
            )
            slowest = alternate(
                {
                    "ours": lambda: float(bus.ask(**SLOWEST)["p99_ms"]),
                    "cli": lambda: p99(_docker_times_ms(name, SLOWEST_CALLS)),
                },
                SLOWEST_ROUNDS,
            )
    finally:
        client.close()
    return [
        row("exec true / docker exec (CLI)", times["ours"], times["cli"], ratio_limit=EXEC_LIMIT),
        row("exec true / docker exec (CLI), p99", slowest["ours"], slowest["cli"], ratio_limit=SLOWEST_LIMIT),
        row("exec true / docker exec (SDK)", times["ours"], times["sdk"], ratio_limit=2 * EXEC_LIMIT),
    ]


def _docker_times_ms(name: str, count: int) -> list[float]:
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        _docker_exec(name)
        spent.append((time.perf_counter() - began) * 1000)
    return spent


def _docker_exec(name: str) -> None:
    subprocess.run(["docker", "exec", name, "true"], check=True)


def _median_ms(once: Callable[[], object]) -> float:
    spent = []
    for _ in range(DOCKER_CALLS):
        began = time.perf_counter()
        once()
        spent.append((time.perf_counter() - began) * 1000)
    return median(spent)


def _tool_row(house: House) -> Row:
    script = (Path(__file__).parent / "inside.py").read_bytes()
    rounds = json.loads(asyncio.run(_exec(house, "python3 -", script)))
    tool, spawn = ([pair[side] for pair in rounds] for side in (0, 1))
    return row("tool call inside / bare spawn inside", tool, spawn, above_limit_ms=TOOL_LIMIT_MS)


async def _exec(house: House, command: str, stdin: bytes = b"") -> bytes:
    async with Bus(house.home, "cli/1") as bus:
        result: ExecResult = await bus.call(
            "sandbox.exec", ExecRequest(command, stdin=stdin), agent=AGENT, ttl_s=120
        )
    if result.exit_code:
        raise RuntimeError(f"{command}: exit {result.exit_code}: {result.stderr.decode(errors='replace')}")
    return result.stdout
