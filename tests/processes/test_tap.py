"""The tap over a real bus: free when nobody watches, complete, redacted, never in the way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from beige import tapevent
from beige.bus import Bus
from beige.cli.tap_view import Loss
from beige.errors import Denied
from beige.messages.base import Empty
from beige.messages.tools import ToolCall, ToolResult
from beige.testing import House, short_home

ROOT = Path(__file__).parents[2]
CLI = ["-m", "beige.cli", "tap"]
CANARY = "hunter2-the-canary"
CONFIG = """
{ llm: { providers: { demo: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" } },
  agents: { travel: { model: { provider: "demo", model: "m" }, tools: ["kv"], sandbox: { image: "i" } } } }
"""


@pytest.fixture
def house():
    with short_home() as home:
        home.config.write_text(CONFIG)
        (home.root / "script.json5").write_text("[]")
        with House(home) as house:
            for name in ("broker", "policy", "audit", "tap"):
                house.start(name)
            yield house


class Watcher:
    """A `beige tap` process that is listening once entered."""

    def __init__(self, house, *options):
        self._process = subprocess.Popen(
            [sys.executable, *CLI, *options], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"BEIGE_HOME": str(house.home.root), "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
        line = self._process.stderr.readline()
        assert line == "listening\n", line + self._process.stderr.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()

    def said(self):
        return self._process.stderr.readline()

    @property
    def stdout(self):
        return self._process.stdout

    def lines(self, count):
        return [self._process.stdout.readline().rstrip("\n") for _ in range(count)]

    def events(self, until):
        """JSON events up to the first for which `until` is true."""
        found = []
        while not found or not until(found[-1]):
            found.append(json.loads(self._process.stdout.readline()))
        return found

    def interrupt(self, number=signal.SIGINT):
        self._process.send_signal(number)
        out, err = self._process.communicate(timeout=10)
        return out, err, self._process.returncode


class Tools:
    def __init__(self, home, output="OK"):
        self.tools, self.bridge, self.cli = Bus(home, "tools/0"), Bus(home, "bridge/0"), Bus(home, "cli/0")

        async def call(request, body):
            request.outcome.exit_code = 0
            return ToolResult(True, output)

        self.tools.serve("tools", {"tools.call": call}, capacity=256)

    async def __aenter__(self):
        for bus in (self.tools, self.bridge, self.cli):
            await bus.start()
        return self

    async def __aexit__(self, *_):
        for bus in (self.cli, self.bridge, self.tools):
            await bus.close()

    async def call(self, tool="kv", *args):
        return await self.bridge.call("tools.call", ToolCall(tool, list(args)), agent="travel")

    async def counter(self, name):
        return (await self.cli.call("bus.stats", Empty())).counters[name]


def calls(house, *todo, output="OK"):
    async def work():
        async with Tools(house.home, output) as tools:
            for tool, *args in todo:
                try:
                    await tools.call(tool, *args)
                except Denied:
                    pass

    asyncio.run(work())


def answered(event):
    return event["peer"] == "bridge/0" and event["dir"] == "out" and event["type"] in ("REPLY", "ERR")


def test_every_step_of_a_call_is_seen_with_its_name(house):
    with Watcher(house, "--json", "--agent", "travel") as watcher:
        calls(house, ("kv", "get", "a"))
        events = watcher.events(answered)
    steps = [(e["dir"], e["peer"], e["type"], e.get("hop", "")) for e in events]
    assert steps == [
        ("in", "bridge/0", "CALL", ""),
        ("out", "policy/0", "CALL", "authorize"), ("in", "policy/0", "REPLY", "authorize"),
        ("out", "audit/0", "CALL", "started"), ("in", "audit/0", "REPLY", "started"),
        ("out", "tools/0", "CALL", "execute"), ("in", "tools/0", "REPLY", "execute"),
        ("out", "audit/0", "CALL", "finished"), ("in", "audit/0", "REPLY", "finished"),
        ("out", "bridge/0", "REPLY", ""),
    ]  # fmt: skip
    assert {e["call"] for e in events[1:]} == {events[-1]["call"]}
    assert {(e["service"], e["method"], e["agent"]) for e in events} == {("tools", "call", "travel")}
    assert events[-1]["latency_ms"] > events[6]["latency_ms"] > 0
    assert not any("body" in e for e in events)


def test_the_sequence_view_draws_the_corridor(house):
    with Watcher(house, "--seq") as watcher:
        calls(house, ("git", "push"))
        header, *steps = watcher.lines(4)
    assert header.split() == ["source", "policy", "audit", "executor"]
    assert "authorize  policy/0  tools.call  travel  from bridge/0" in steps[0]
    assert "├──────────▶started" in steps[1].replace(" ", "")
    assert "(denied)" in steps[1]
    assert "ERR        bridge/0  denied" in steps[2]


def test_errors_can_be_picked_out(house):
    with Watcher(house, "--errors", "-n", "2") as watcher:
        calls(house, ("kv", "get"), ("git", "push"), ("kv", "get"))
        lines = watcher.lines(2)
    assert [" ERR " in line and "denied" in line for line in lines] == [True, True]


def test_bodies_come_only_when_asked_for_and_redacted(house):
    with Watcher(house, "--json", "--bodies", "--agent", "travel") as watcher:
        calls(house, ("kv", "set", CANARY, f"token={CANARY}"), output=CANARY)
        events = watcher.events(answered)
    with Watcher(house, "--json") as watcher:
        calls(house, ("kv", "set", CANARY))
        plain = watcher.events(answered)
    assert events[0]["body"] == {"tool": "kv", "args": "set <3 items>"}
    assert events[-1]["body"]["success"] is True
    assert CANARY not in json.dumps(events)
    assert not any("body" in e for e in plain)


def test_nothing_is_copied_while_nobody_watches(house):
    async def copied():
        async with Tools(house.home) as tools:
            before = await tools.counter("tap_sequence")
            await asyncio.gather(*(tools.call("kv", "get") for _ in range(30)))
            return await tools.counter("tap_sequence") - before

    assert asyncio.run(copied()) == 0
    with Watcher(house, "--json"):
        assert asyncio.run(copied()) > 0
    with zmq.Context() as context, context.socket(zmq.SUB) as state:
        # the tap's word that the last subscriber's leaving reached the broker
        state.connect(house.home.tap_endpoint)
        on = True
        while on:
            state.subscribe(tapevent.STATE)
            assert state.poll(5000)
            on = tapevent.decode_state(state.recv_multipart()[1]).on
            state.unsubscribe(tapevent.STATE)
        state.linger = 0
    asyncio.run(copied())  # meanwhile the broker sends off the last copies it had made
    assert asyncio.run(copied()) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_replays_to_the_same_lines(house, tmp_path, number):
    path = tmp_path / "one.tap"
    with Watcher(house, "--agent", "travel", "--record", str(path)) as watcher:
        calls(house, ("kv", "get", "a"))
        shown = watcher.lines(10)
        _, said, code = watcher.interrupt(number)
    assert code == 0
    assert "10 events recorded" in said
    assert path.stat().st_mode & 0o777 == 0o600
    again = subprocess.run(
        [sys.executable, *CLI, "--replay", str(path)], cwd=ROOT, text=True, capture_output=True,
        check=True, env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert again.stdout.splitlines() == shown


def test_the_tap_goes_on_after_the_broker_was_killed(house):
    with Watcher(house, "--json") as watcher:
        calls(house, ("kv", "get"))
        watcher.events(answered)
        house.kill("broker")
        house.start("broker")
        assert "restarted" in watcher.said()
        calls(house, ("kv", "get"))
        again = watcher.events(lambda e: answered(e) and e["type"] == "REPLY")
    assert any(e.get("hop") == "execute" for e in again)


def test_a_subscriber_that_never_reads_is_not_waited_for_and_knows_its_loss(house):
    async def work(count):
        async with Tools(house.home) as tools:
            for _ in range(count // 100):
                await asyncio.gather(*(tools.call("kv", "x" * 64) for _ in range(100)))
            return await tools.counter("tap_sequence"), await tools.counter("tap_dropped")

    loss, received = Loss(), []

    def read():
        while stuck.poll(500):
            topic, payload = stuck.recv_multipart()
            received.append(tapevent.decode_event(payload))
            loss.note(topic, received[-1])

    with zmq.Context() as context, context.socket(zmq.SUB) as stuck, Watcher(house, "--json") as watcher:
        stuck.linger, stuck.rcvhwm = 0, 10
        stuck.connect(house.home.tap_endpoint)
        stuck.subscribe(b"travel")
        stuck.subscribe(tapevent.STATE)
        assert stuck.poll(5000)
        assert stuck.recv_multipart()[0] == tapevent.STATE
        stuck.unsubscribe(tapevent.STATE)
        with subprocess.Popen(["cat"], stdin=watcher.stdout, stdout=subprocess.DEVNULL) as reader:
            copied, dropped = asyncio.run(work(3000))
            read()
            asyncio.run(work(100))
            read()
            watcher.interrupt()
            reader.wait(10)
    assert copied > 25_000
    assert dropped == loss.before_tap == 0
    assert loss.own > 1000
    assert received[0].topic_seq == 1
    assert len(received) + loss.own == received[-1].topic_seq


def test_without_a_tap_the_command_says_so(house, tmp_path):
    run = subprocess.run(
        [sys.executable, *CLI], cwd=ROOT, text=True, capture_output=True, check=False,
        env=os.environ | {"BEIGE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 1
    assert "no tap process answers" in run.stderr
