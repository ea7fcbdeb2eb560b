"""Starts and stops a whole house: checked before anything runs, and nothing left behind afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from beige import tokens
from beige.config import Config, check_everything, source, variables_for
from beige.config.problems import suggest
from beige.errors import Failed, NotFound, Unavailable
from beige.keys import ensure_keys
from beige.paths import Home
from beige.supervisor import environment, leftovers
from beige.supervisor.conf import render, supervisord_environ
from beige.supervisor.control import Control
from beige.supervisor.programs import bus_users, programs
from beige.supervisor.readiness import Progress, wait_ready

START_S = 60.0
STOP_S = 40.0
"""Longest a whole house may take to stop before it is killed."""
GRACE_S = 2.0


@dataclass(frozen=True)
class Plan:
    """What would be started, decided before anything is touched."""

    config: Config
    conf: str
    environments: environment.Environments
    digest: str
    """Changes with the configuration, the values of its variables and the Python that runs it."""

    @property
    def users(self) -> frozenset[str]:
        chosen = programs(self.config.scale, self.config.switched_off)
        return frozenset(user for program in chosen for user in program.users)


def plan(home: Home, environ: Mapping[str, str]) -> Plan:
    """ConfigError if the configuration is wrong for any process."""
    config = check_everything(home, environ)
    conf = render(config.scale, config.switched_off)
    variables = variables_for(source.read(home.config))
    values = {name: environ.get(name) for names in variables.values() for name in names}
    parts = json.dumps([conf, values, sys.executable], sort_keys=True).encode()
    digest = hashlib.sha256(parts + home.config.read_bytes()).hexdigest()
    return Plan(config, conf, environment.environments(home, variables, environ), digest)


def environ_of(home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, and below it, while the house runs, the variables it was started with: commands given
    in another terminal don't need the keys again."""
    return (environment.known_before(home) if is_up(home) else {}) | dict(environ)


def is_up(home: Home) -> bool:
    return Control(home, timeout_s=5.0).answers()


def up(
    home: Home, environ: Mapping[str, str], progress: Progress
) -> Literal["started", "running", "changed"]:
    """Start everything and return when it serves. `running`: it was already; `changed`: it was, with
    another configuration. Whatever goes wrong, Ctrl-C too, nothing is left running."""
    wanted = plan(home, environ)
    with _exclusive(home):
        if is_up(home):
            return "running" if _digest_file(home).read_text() == wanted.digest else "changed"
        _prepare(home, wanted)
        with _undone_on_failure(home):
            _daemonize(home, environ)
            asyncio.run(wait_ready(home, wanted.users, START_S, progress))
    return "started"


def stay_up(home: Home, environ: Mapping[str, str], progress: Progress) -> int:
    """Start everything, stay attached until supervisord ends, and return its exit code (0: it was told
    to, as `beige down` does). An exception raised by a signal handler (KeyboardInterrupt) stops
    everything and is raised again."""
    wanted = plan(home, environ)
    with _exclusive(home):
        if is_up(home):
            raise Failed("beige is up already for this home; stop it with `beige down`", executed="no")
        _prepare(home, wanted)
    process = subprocess.Popen(
        [*_supervisord(home), "--nodaemon"],
        env=supervisord_environ(home, environ),
        cwd="/",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    with process, _undone_on_failure(home):
        _wait_answering(home, process)
        asyncio.run(wait_ready(home, wanted.users, START_S, progress))
        progress("ready")
        code = process.wait()
        down(home)  # what a supervisord that was killed left
        return code


def down(home: Home) -> bool:
    """Stop everything within a bounded time; False if nothing was running. Containers are the
    sandbox service's business, which acts on SIGTERM."""
    with _one_stop_at_a_time(home):
        was_up = _shut_down(home)
        found = leftovers.end_processes(home, GRACE_S)
        leftovers.remove_sockets(home)
        environment.remove(home)
        for name in ("supervisord.conf", "supervisord.pid", "plan.sha256"):
            (home.run / name).unlink(missing_ok=True)
        home.http_address.unlink(missing_ok=True)
    return was_up or found > 0


def _shut_down(home: Home) -> bool:
    """Ask supervisord to stop everything, and wait; False if it doesn't answer."""
    try:
        Control(home, timeout_s=5.0).shutdown()
    except Unavailable:
        return False
    leftovers.wait_gone(home, STOP_S)
    return True


def restart(home: Home, program: str, environ: Mapping[str, str], progress: Progress) -> None:
    """Restart one program with the configuration and variables of now, and wait until it serves. Failed
    if the change is one that only a whole restart can make (scale)."""
    wanted = plan(home, environ)
    if program not in wanted.environments:
        raise NotFound(f"no such service: {program!r}; {suggest(program, wanted.environments)}")
    if (home.run / "supervisord.conf").read_text() != wanted.conf:
        raise Failed("the number of processes changed: run `beige restart` without a service", executed="no")
    environment.write(home, {program: wanted.environments[program]})
    Control(home).restart(program)
    asyncio.run(wait_ready(home, wanted.users, START_S, progress))


def setup(home: Home, config: Config) -> None:
    """Directories, bus secrets for the scale, and the HTTP API's first token. Idempotent."""
    home.create()
    ensure_keys(home, bus_users(config.scale, config.switched_off))
    tokens.ensure(home)


def _prepare(home: Home, wanted: Plan) -> None:
    leftovers.end_processes(home, GRACE_S)
    leftovers.remove_sockets(home)
    setup(home, wanted.config)
    environment.write(home, wanted.environments)
    (home.run / "supervisord.conf").write_text(wanted.conf)
    _digest_file(home).write_text(wanted.digest)


def _supervisord(home: Home) -> list[str]:
    conf = str(home.run / "supervisord.conf")
    return [sys.executable, "-P", "-m", "beige.supervisor.daemon", "--configuration", conf]


def _daemonize(home: Home, environ: Mapping[str, str]) -> None:
    """Start supervisord; it goes to the background by itself once its configuration is read."""
    done = subprocess.run(
        _supervisord(home),
        env=supervisord_environ(home, environ),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise Failed(f"supervisord can't start: {done.stderr.strip() or done.stdout.strip()}", executed="no")
    _wait_answering(home, None)


def _wait_answering(home: Home, process: subprocess.Popen[bytes] | None) -> None:
    end = time.monotonic() + START_S
    while not is_up(home):
        if process is not None and process.poll() is not None:
            raise Failed(f"supervisord ended with exit code {process.returncode}", executed="no")
        if time.monotonic() >= end:
            raise Unavailable(f"supervisord doesn't answer after {START_S:.0f} s")
        time.sleep(leftovers.POLL_S)


def _digest_file(home: Home) -> Path:
    return home.run / "plan.sha256"


@contextlib.contextmanager
def _exclusive(home: Home) -> Iterator[None]:
    """One start at a time per home. Failed if another one is at it."""
    home.create()
    handle = os.open(home.run / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed("another `beige up` is starting this home right now", executed="no") from None


@contextlib.contextmanager
def _one_stop_at_a_time(home: Home) -> Iterator[None]:
    """A second `beige down`, or one while Ctrl-C undoes an `up`, waits for the first to end. What waits
    too long goes on: stopping twice is harmless, not stopping is not."""
    home.create()
    with (home.run / "down.lock").open("w") as lock:
        end = time.monotonic() + STOP_S
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(leftovers.POLL_S)
        yield


@contextlib.contextmanager
def _undone_on_failure(home: Home) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with _uninterrupted():
            down(home)
        raise


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C, or a SIGTERM on top, must not stop the cleaning up; it is bounded in time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
