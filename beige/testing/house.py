"""Starts beige's processes one by one in a throw-away home, and ends exactly those."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from beige import tokens
from beige.keys import ensure_keys
from beige.paths import Home

MODULES = {"broker": "broker", "bridge": "socket_bridge"}
"""Program name to module, where it is not `services.<name>`."""
USERS = [
    *("policy/0", "audit/0", "sandbox/0", "bridge/0", "tap/0", "gateway/0", "egress/0", "channels/0"),
    *(f"{role}/{n}" for role in ("llm", "tools", "cli") for n in range(2)),
]
READY_S = 90.0


@contextlib.contextmanager
def short_home(prefix: str = "bg-") -> Iterator[Home]:
    """A temporary home whose path is short enough for sockets below it."""
    root = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    home = Home(root)
    try:
        home.create()
        yield home
    finally:
        shutil.rmtree(root, ignore_errors=True)


class House:
    """Processes of one home, by program name (`policy`) or name and instance (`llm/1`)."""

    def __init__(self, home: Home, environment: dict[str, str] | None = None) -> None:
        self.home = home
        self._environment = environment or {}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        home.create()
        ensure_keys(home, USERS)
        tokens.ensure(home)

    def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a program and wait for its READY line. `command` replaces the usual one."""
        program, _, instance = name.partition("/")
        module = MODULES.get(program, f"services.{program}")
        log = (self.home.logs / f"{name.replace('/', '-')}.log").open("a")
        with log:
            process = subprocess.Popen(
                list(command) or [sys.executable, "-P", "-m", module],
                env=self.environment(instance or "0") | (env or {}),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
            )
        self.processes[name] = process
        self._wait_ready(name, process)
        return process

    def environment(self, instance: str) -> dict[str, str]:
        """What a process of this house is started with."""
        root = Path(__file__).resolve().parents[2]
        return {
            "PATH": os.environ.get("PATH", ""),
            "HOME": os.environ.get("HOME", "/"),
            "PYTHONPATH": str(root),
            "BEIGE_HOME": str(self.home.root),
            "BEIGE_INSTANCE": instance,
        } | self._environment

    def _wait_ready(self, name: str, process: subprocess.Popen[str]) -> None:
        timer = threading.Timer(READY_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line.strip() != "READY":
            self._end(name, signal.SIGKILL)
            raise RuntimeError(f"{name} did not start:\n{self.log(name)[-4000:]}")

    def log(self, name: str) -> str:
        return (self.home.logs / f"{name.replace('/', '-')}.log").read_text()

    def kill(self, name: str) -> None:
        """kill -9, and wait until it is gone."""
        self._end(name, signal.SIGKILL)

    def stop(self, name: str) -> int:
        """SIGTERM; the exit code."""
        return self._end(name, signal.SIGTERM)

    def _end(self, name: str, number: int) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            return process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def close(self) -> None:
        """End every process, the broker last."""
        for name in sorted(self.processes, key=lambda n: n == "broker"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop(name)

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
