"""Which processes belong to a home, and how they are ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from beige.paths import Home
from beige.supervisor import leftovers

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("on", flush=True)
time.sleep(60)
"""


def start(home: Home, **environ: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        env={"BEIGE_HOME": str(home.root), **environ},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    return process


@pytest.fixture
def ours(home: Home) -> Iterator[subprocess.Popen[str]]:
    with start(home, BEIGE_INSTANCE="0") as process:
        yield process
        process.kill()


@pytest.fixture
def foreign(home: Home) -> Iterator[subprocess.Popen[str]]:
    """A shell of the operator for the same home: supervisord did not start it."""
    with start(home) as process:
        yield process
        process.kill()


def test_only_processes_started_for_this_home_are_found(
    home: Home, ours: subprocess.Popen[str], foreign: subprocess.Popen[str]
) -> None:
    assert leftovers.processes(home) == [ours.pid]
    assert leftovers.processes(Home(home.root / "other")) == []


def test_one_that_ignores_the_signal_is_killed(
    home: Home, ours: subprocess.Popen[str], foreign: subprocess.Popen[str]
) -> None:
    assert leftovers.end_processes(home, grace_s=0.1) == 1
    assert ours.wait(timeout=10) == -9
    assert foreign.poll() is None


def test_sockets_go_and_files_stay(home: Home) -> None:
    path = home.run / "agents" / "bus.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    (home.run / "note").write_text("kept")
    os.symlink(path, home.root / "sockets" / "a.sock")
    leftovers.remove_sockets(home)
    assert not path.exists() and not (home.root / "sockets" / "a.sock").is_symlink()
    assert (home.run / "note").exists()
