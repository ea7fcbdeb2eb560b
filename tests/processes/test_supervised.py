"""The house under a real supervisord: what each process may know, what comes back, what stays behind.

Needs no Docker: the sandbox process starts without an engine and waits for one.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beige.errors import ConfigError, Failed
from beige.paths import Home
from beige.supervisor import environment, leftovers, lifecycle
from beige.supervisor.control import Control, ProcessState
from beige.supervisor.launch import MODULES
from beige.testing import short_home

KEY, TOKEN, BOT = "sk-secret-of-the-provider", "secret-of-the-plugin", "secret-of-the-channel"
SECRETS = {
    "ANTHROPIC_API_KEY": KEY,
    "KV_TOKEN": TOKEN,
    "BOT_TOKEN": BOT,
    "UNRELATED": "secret-of-the-operator",
}
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
HOSTILE = "a b%c ;d #e %(ENV_HOME)s 'q' \"p\" $HOME \\ " + "x" * 100
DEADLINE_S = 60.0
CONFIG = """
{
  llm: { providers: { anthropic: { apiKey: "${ANTHROPIC_API_KEY}" } } },
  plugins: { kv: { path: "bundled:kv", config: { token: "${KV_TOKEN}" } }, quiet: { path: "plugins/quiet" } },
  channels: { quiet: { agents: ["a"], config: { token: "${BOT_TOKEN}" } } },
  agents: {
    a: { model: { provider: "anthropic", model: "m" }, tools: ["kv"], sandbox: { image: "none" } },
  },
  SCALE
}
"""


QUIET = """
import asyncio
class Quiet:
    def register(self, reg): reg.channel("quiet", self)
    async def run(self, ctx): await asyncio.Event().wait()
def create_plugin(config, ctx): return Quiet()
"""
"""A channel on which nobody ever says anything."""


def furnish(home: Home, scale: str = "") -> None:
    home.create()
    quiet = home.root / "plugins" / "quiet"
    quiet.mkdir(parents=True)
    manifest = {"name": "quiet", "description": "for tests", "provides": {"channels": ["quiet"]}}
    (quiet / "plugin.json").write_text(json.dumps(manifest))
    (quiet / "plugin.py").write_text(QUIET)
    home.config.write_text(CONFIG.replace("SCALE", scale))


def eventually(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE_S:.0f} s: {what}"
        time.sleep(0.02)


def ignore(_: str) -> None:
    """Progress that nobody reads."""


def states(home: Home) -> dict[str, ProcessState]:
    return {state.name: state for state in Control(home).processes()}


def sockets(home: Home) -> list[Path]:
    return [path for path in home.run.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]


def assert_nothing_left(home: Home) -> None:
    assert leftovers.processes(home) == []
    assert sockets(home) == []
    assert not environment.directory(home).exists()


def beige(home: Home, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=environment.minimal(home, PLAIN) | environ,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def empty() -> Iterator[Home]:
    """A furnished home in which nothing runs, and nothing does afterwards."""
    with short_home() as home:
        furnish(home)
        try:
            yield home
        finally:
            lifecycle.down(home)


@pytest.fixture(scope="module")
def running() -> Iterator[Home]:
    """A house that is up, with two llm processes, in a home whose path has everything that hurts."""
    with short_home() as outer:
        home = Home(outer.root / HOSTILE)
        furnish(home, "scale: { llm: 2 },")
        try:
            assert lifecycle.up(home, PLAIN | SECRETS, ignore) == "started"
            yield home
        finally:
            lifecycle.down(home)
            assert_nothing_left(home)


def test_every_process_runs_and_logs_below_the_home(running: Home) -> None:
    found = states(running)
    assert set(found) == (set(MODULES) - {"llm"}) | {"llm-0", "llm-1"}
    silent, end = set(found), time.monotonic() + 10
    while silent and time.monotonic() < end:  # supervisord copies what they print at its next poll
        silent = {name for name in silent if "READY" not in (running.logs / f"{name}.log").read_text()}
    assert silent == set()


def test_only_the_process_that_needs_a_secret_has_it_in_its_environment(running: Home) -> None:
    holders: dict[str, set[str]] = {value: set() for value in SECRETS.values()}
    pids = {name: state.pid for name, state in states(running).items()}
    pids["supervisord"] = Control(running).pid()
    for name, pid in pids.items():
        environ = Path(f"/proc/{pid}/environ").read_text()
        assert "BEIGE_HOME=" in environ
        for value, having in holders.items():
            if value in environ:
                having.add(name)
    expected = {KEY: {"llm-0", "llm-1"}, TOKEN: {"tools"}, BOT: {"channels"}, SECRETS["UNRELATED"]: set()}
    assert holders == expected


def test_environment_files_are_private(running: Home) -> None:
    directory = environment.directory(running)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_no_process_works_in_a_directory_an_agent_can_write(running: Home) -> None:
    assert {os.readlink(f"/proc/{state.pid}/cwd") for state in states(running).values()} == {"/"}


def test_up_again_starts_nothing(running: Home) -> None:
    before = {name: state.pid for name, state in states(running).items()}
    assert lifecycle.up(running, lifecycle.environ_of(running, PLAIN), ignore) == "running"
    assert {name: state.pid for name, state in states(running).items()} == before


def test_up_with_another_configuration_says_so(running: Home) -> None:
    before = running.config.read_text()
    running.config.write_text(before.replace('model: "m"', 'model: "n"'))
    try:
        assert lifecycle.up(running, PLAIN | SECRETS, ignore) == "changed"
    finally:
        running.config.write_text(before)


@pytest.mark.parametrize(
    "name",
    [
        "broker",
        "policy",
        "audit",
        "sandbox",
        "tools",
        "egress",
        "bridge",
        "llm-1",
        "tap",
        "gateway",
        "channels",
    ],
)
def test_a_killed_process_comes_back(running: Home, name: str) -> None:
    eventually(lambda: states(running)[name].state == "RUNNING", f"{name} runs")
    pid = states(running)[name].pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: states(running)[name].pid not in (0, pid), f"{name} is back")
    new = states(running)[name].pid
    eventually(lambda: "BEIGE_INSTANCE=" in Path(f"/proc/{new}/environ").read_text(), f"{name} was launched")


def test_restarting_one_service_leaves_the_others_alone(running: Home) -> None:
    before = {name: state.pid for name, state in states(running).items()}
    lifecycle.restart(running, "llm", PLAIN | SECRETS, ignore)
    after = {name: state.pid for name, state in states(running).items()}
    assert {name for name in before if before[name] != after[name]} == {"llm-0", "llm-1"}


def test_a_changed_scale_needs_a_whole_restart(running: Home) -> None:
    before = running.config.read_text()
    running.config.write_text(before.replace("llm: 2", "llm: 3"))
    try:
        with pytest.raises(Failed, match="run `beige restart` without a service"):
            lifecycle.restart(running, "llm", PLAIN | SECRETS, ignore)
    finally:
        running.config.write_text(before)


def test_status_shows_both_views(running: Home) -> None:
    process = beige(running, "status", "--json")
    out, err = process.communicate(timeout=DEADLINE_S)
    report = json.loads(out)
    assert report["scale"] == {"llm": 2, "tools": 1}, err
    assert {service["name"] for service in report["services"]} == set(states(running))
    assert all(service["pid"] > 0 for service in report["services"])


def test_a_wrong_configuration_starts_nothing(empty: Home) -> None:
    empty.config.write_text(CONFIG.replace("SCALE", "scale: { llm: 99 }, extra: 1"))
    with pytest.raises(ConfigError, match=r"scale\.llm"):
        lifecycle.up(empty, PLAIN | SECRETS, ignore)
    process = beige(empty, "up", **SECRETS)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, "")
    assert "extra: unknown key" in err and "scale.llm" in err
    assert_nothing_left(empty)


def test_a_process_that_cannot_start_is_shown_and_nothing_stays(empty: Home) -> None:
    (empty.root / "broken.json5").write_text("{ neither: 'a script' }")
    text = CONFIG.replace("SCALE", "").replace('"anthropic", model', '"s", model')
    empty.config.write_text(
        text.replace("providers: {", 'providers: { s: { api: "scripted", script: "broken.json5" },')
    )
    with pytest.raises(Failed) as caught:
        lifecycle.up(empty, PLAIN | SECRETS, ignore)
    assert str(caught.value).startswith("llm can't start; its last log lines:\n  ")
    assert "broken.json5" in str(caught.value)
    assert_nothing_left(empty)


def test_interrupting_up_leaves_nothing(empty: Home) -> None:
    process = beige(empty, "up", "--no-build", **SECRETS)
    eventually(lambda: (empty.run / "supervisord.sock").exists(), "supervisord started")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert_nothing_left(empty)


def foreground(home: Home) -> subprocess.Popen[str]:
    process = beige(home, "up", "--foreground", **SECRETS)
    assert process.stderr is not None
    while (line := process.stderr.readline()) and line.strip() != "ready":
        pass
    assert line.strip() == "ready"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_the_foreground_a_signal_stops_everything(empty: Home, number: signal.Signals) -> None:
    process = foreground(empty)
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert_nothing_left(empty)


@pytest.mark.parametrize(("end", "code"), [("down", 0), ("kill -9", 1)])
def test_the_foreground_ends_with_its_supervisord(empty: Home, end: str, code: int) -> None:
    process = foreground(empty)
    if end == "down":
        assert beige(empty, "down").communicate(timeout=DEADLINE_S)[0] == "stopped\n"
    else:
        os.kill(Control(empty).pid(), signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code
    assert_nothing_left(empty)


def test_without_its_supervisord_no_process_goes_on(empty: Home) -> None:
    lifecycle.up(empty, PLAIN | SECRETS, ignore)
    os.kill(Control(empty).pid(), signal.SIGKILL)
    eventually(lambda: not leftovers.processes(empty), "every process ended by itself")
    assert lifecycle.up(empty, PLAIN | SECRETS, ignore) == "started"


def test_a_second_up_at_the_same_time_is_refused(empty: Home) -> None:
    first, second = (beige(empty, "up", "--no-build", **SECRETS) for _ in range(2))
    errors = [process.communicate(timeout=DEADLINE_S)[1] for process in (first, second)]
    codes = sorted((first.returncode, second.returncode))
    # The slower one may also come so late that it finds everything up.
    assert codes == [0, 0] or (codes == [0, 1] and "another `beige up`" in "".join(errors))
    assert len([s for s in states(empty).values() if s.state in ("RUNNING", "STARTING")]) == len(MODULES)


def test_down_without_a_house_is_no_error(empty: Home) -> None:
    assert lifecycle.down(empty) is False
