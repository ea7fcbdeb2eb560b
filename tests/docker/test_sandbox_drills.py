"""Drills: the sandbox service is killed while a hundred commands run; the engine goes away and comes back.

The engine of this machine is other people's too, so the second drill has one of its own, in a network and
mount namespace where it can't touch the first one's bridge or mounts.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from beige.errors import BeigeError, Failed, Unavailable
from beige.messages.base import AgentRef

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


class PrivateEngine:
    """A dockerd of this test's own, whose end ends its containers."""

    def __init__(self, root: Path) -> None:
        self._root, self.host = root, f"unix://{root}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A mount namespace that still sees later mounts of the host; a network of its own, because a
        # second engine with --bridge=none removes the first one's docker0.
        command = [
            *("unshare", "--mount", "--propagation=slave", "--net", "dockerd", f"--host={self.host}"),
            *(f"--data-root={self._root}/data", f"--exec-root={self._root}/exec"),
            *(
                f"--pidfile={self._root}/pid",
                "--bridge=none",
                "--iptables=false",
                "--cgroup-parent=/beige-drill",
            ),
        ]
        (self._root / "pid").unlink(missing_ok=True)
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 60
        while self.docker("version", check=False).returncode:
            assert time.monotonic() < end, (self._root / "log").read_text()[-4000:]
            assert self._process.poll() is None, (self._root / "log").read_text()[-4000:]
            time.sleep(0.05)

    def docker(self, *arguments: str, check: bool = True, stdin: int | None = None):
        return subprocess.run(
            ["docker", f"--host={self.host}", *arguments],
            stdin=stdin or subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=check,
        )  # fmt: skip

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)

    def take_image(self, name: str) -> None:
        with subprocess.Popen(["docker", "save", name], stdout=subprocess.PIPE) as saved:
            assert saved.stdout is not None
            self.docker("load", stdin=saved.stdout.fileno())


@pytest.fixture
def private_engine(sandbox_image):
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("a second engine needs root and dockerd")
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bgd-", dir=place, ignore_cleanup_errors=True) as name:
        engine = PrivateEngine(Path(name))
        engine.start()
        try:
            engine.take_image(sandbox_image)
            yield engine
        finally:
            engine.stop()


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
