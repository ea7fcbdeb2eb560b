"""The static programs, compiled here, and executors to talk to.

The executor kills everything it can reach when its connection is lost. Outside a pid namespace of its
own that is its own descendants only (image/init/proc.c); as PID 1 it runs here only below `unshare`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from beige.paths import image_dir

# Test files import it by name; with --import-mode=importlib their directory is not on the path.
_spec = importlib.util.spec_from_file_location("executor_host", Path(__file__).with_name("executor_host.py"))
assert _spec and _spec.loader
executor_host = importlib.util.module_from_spec(_spec)
sys.modules["executor_host"] = executor_host
_spec.loader.exec_module(executor_host)
Box = executor_host.Box

SANITIZE = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
NEW_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def compile_programs(out: Path, **environment: str) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    script = image_dir() / "native.sh"
    done = subprocess.run(
        ["sh", script, out], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def static_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_programs(tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="session")
def sanitized_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_programs(tmp_path_factory.mktemp("sanitized"), CFLAGS=SANITIZE)


def can_unshare() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run(
        [*NEW_PID_NAMESPACE, "true"], capture_output=True
    ).returncode == 0  # fmt: skip


def ignore_signals() -> None:
    """As a careless starter leaves them: an ordinary one, and one that the C library keeps for itself
    and would not touch."""
    number = {"x86_64": 13, "aarch64": 134}[platform.machine()]  # rt_sigaction
    action = (ctypes.c_ulong * 4)(int(signal.SIG_IGN))
    for signo in (signal.SIGUSR1, 32):
        ctypes.CDLL(None).syscall(number, int(signo), ctypes.byref(action), None, 8)


def start_box(path: Path, init: Path, below: list[str]) -> Box:
    box = Box(path)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    # detect_leaks needs ptrace, which the executor forbids; memory is measured instead.
    box.process = subprocess.Popen([*below, init, path], env=environment, preexec_fn=ignore_signals)
    box.accept()
    return box


@pytest.fixture(params=["static", "sanitized", "pid1"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Box]:
    """An executor: as shipped, with sanitizers, and as PID 1 of a namespace (where it may kill(-1))."""
    if request.param == "pid1" and not can_unshare():
        pytest.skip("needs the right to make a pid namespace")
    build = "sanitized" if request.param == "sanitized" else "static"
    programs = request.getfixturevalue(f"{build}_programs")
    below = NEW_PID_NAMESPACE if request.param == "pid1" else []
    started = start_box(tmp_path / "exec.sock", programs / "init", below)
    yield started
    started.close()


@pytest.fixture
def plain_box(static_programs: Path, tmp_path: Path) -> Iterator[Box]:
    """The shipped executor as a direct child, so that its process can be measured."""
    started = start_box(tmp_path / "exec.sock", static_programs / "init", [])
    yield started
    started.close()


@pytest.fixture
def marker() -> str:
    """An argument for `sleep` that no other process on this machine has."""
    return f"3600.{time.time_ns()}"
