"""Waits until every process is on the bus, or says which one can't start and why."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from beige.bus import Bus
from beige.errors import BeigeError, Failed, Unavailable
from beige.messages.base import Empty
from beige.messages.bus import BusStats
from beige.paths import Home
from beige.supervisor.control import Control, ProcessState
from beige.supervisor.programs import CLI_USER

POLL_S = 0.05
LOG_LINES = 12
CANNOT_START = frozenset({"BACKOFF", "FATAL", "EXITED"})

Progress = Callable[[str], None]


async def wait_ready(home: Home, users: frozenset[str], timeout_s: float, progress: Progress) -> None:
    """Returns once all `users` have a session on the bus. Failed, with the last log lines of the
    program that ended, as soon as one can't start; Unavailable after `timeout_s`."""
    control, end = Control(home, timeout_s=5.0), time.monotonic() + timeout_s
    missing = users
    async with _bus(home, end) as bus:
        while missing:
            _refuse_broken(home, await asyncio.to_thread(control.processes))
            missing = users - await _present(bus, end)
            progress(f"{len(users) - len(missing)} of {len(users)} services on the bus")
            if missing and time.monotonic() >= end:
                raise Unavailable(f"not on the bus after {timeout_s:.0f} s: {', '.join(sorted(missing))}")
            if missing:
                await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def _bus(home: Home, end: float) -> AsyncIterator[Bus]:
    """The bus, as soon as the broker answers; a broker that can't start is reported at once."""
    control = Control(home, timeout_s=5.0)
    while True:
        _refuse_broken(home, await asyncio.to_thread(control.processes))
        bus = Bus(home, CLI_USER)
        try:
            await bus.start(timeout_s=0.5)
        except Unavailable:
            if time.monotonic() >= end:
                raise
            continue
        try:
            yield bus
        finally:
            await bus.close()
        return


async def _present(bus: Bus, end: float) -> set[str]:
    try:
        stats: BusStats = await bus.call("bus.stats", Empty(), ttl_s=max(0.1, end - time.monotonic()))
    except BeigeError:
        return set()
    return {peer.user for peer in stats.peers}


def _refuse_broken(home: Home, states: list[ProcessState]) -> None:
    for state in states:
        if state.state in CANNOT_START:
            lines = tail(log_path(home, state.name), LOG_LINES) or ["(none)"]
            text = "\n  ".join([f"{state.name} can't start; its last log lines:", *lines])
            raise Failed(text, executed="no")


def log_path(home: Home, process: str) -> Path:
    return home.logs / f"{process}.log"


def tail(path: Path, count: int) -> list[str]:
    """The last `count` lines, reading at most the last 64 KiB."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 64 * 1024))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[-count:] if count > 0 else []
