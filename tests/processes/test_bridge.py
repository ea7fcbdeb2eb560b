"""The bridge in its house: from an agent's socket through policy, audit and a plugin, and back."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beige.testing import House, short_home

CONFIG = """
{ llm: { providers: { demo: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" }, slow: { path: "plugins/slow" } },
  agents: {
    travel: { model: { provider: "demo", model: "m" }, tools: ["kv", "slow"], sandbox: { image: "i" } },
    other: { model: { provider: "demo", model: "m" }, tools: ["kv"], sandbox: { image: "i" } },
  } }
"""
SLOW = """
import asyncio
class Slow:
    def __init__(self, marks): self.marks = marks
    def register(self, reg): reg.tool("slow", self.call)
    async def call(self, call):
        (self.marks / "started").touch()
        try:
            await asyncio.sleep(60)
        finally:
            (self.marks / "ended").touch()
def create_plugin(config, ctx): return Slow(ctx.data_dir)
"""


@pytest.fixture
def house() -> Iterator[House]:
    with short_home() as home:
        home.config.write_text(CONFIG)
        (home.root / "script.json5").write_text("[]")
        directory = home.root / "plugins" / "slow"
        directory.mkdir(parents=True)
        manifest = {"name": "slow", "description": "for tests", "provides": {"tools": ["slow"]}}
        (directory / "plugin.json").write_text(json.dumps(manifest))
        (directory / "plugin.py").write_text(SLOW)
        with House(home) as house:
            for name in ("broker", "policy", "audit", "tools", "bridge"):
                house.start(name)
            yield house


class Agent:
    """A process inside an agent's container, as far as the bridge can tell."""

    def __init__(self, house: House, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(house.home.socket_link(name)))
        self._file = self._socket.makefile("rwb")

    def send(self, tool: str, *args: str, **fields: Any) -> None:
        request = {"type": "tool_request", "tool": tool, "args": list(args)} | fields
        self._file.write(json.dumps(request).encode() + b"\n")
        self._file.flush()

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._file.readline())
        return answer

    def ask(self, tool: str, *args: str, **fields: Any) -> dict[str, Any]:
        self.send(tool, *args, **fields)
        return self.answer()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def audit(house: House) -> list[dict[str, Any]]:
    return [json.loads(line) for line in house.home.audit_log.read_text().splitlines()]


def wait_for(condition: Callable[[], bool]) -> None:
    """Polls what another process does by itself; the test's time limit ends it."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def test_the_seeds_exchange_and_its_audit_records(house: House) -> None:
    with Agent(house, "travel") as travel:
        ok = travel.ask("kv", "set", "trip:paris", "March 15", cwd="/workspace")
        assert ok == {"type": "tool_response", "success": True, "output": "OK", "exitCode": 0}
        assert travel.ask("kv", "get", "nothing", id=7) == {
            "type": "tool_response",
            "success": False,
            "error": "kv: no such key: 'nothing'",
            "exitCode": 1,
            "id": 7,
        }
        assert travel.ask("git", "status") == {
            "type": "tool_response",
            "success": False,
            "error": "Permission denied: tool 'git' not allowed for agent 'travel'",
            "exitCode": 1,
        }
    records = audit(house)
    assert [(r["phase"], r["decision"]) for r in records if r["tool"] == "kv"] == [
        ("started", "allowed"),
        ("finished", "allowed"),
    ] * 2
    assert [r["decision"] for r in records if r["tool"] == "git"] == ["denied"]
    first = records[1]
    assert (first["agent"], first["type"], first["args"]) == (
        "travel",
        "tool",
        ["set", "trip:paris", "March 15"],
    )


def test_a_payload_cannot_choose_agent_session_or_token(house: House) -> None:
    lies: dict[str, Any] = {
        "agent": "travel",
        "session": "boss",
        "sessionContext": {"sessionKey": "boss", "agent": "travel"},
        "channel": "telegram",
        "token": "0" * 64,
    }
    with Agent(house, "travel") as travel, Agent(house, "other") as other:
        travel.ask("kv", "set", "secret", "mine")
        assert other.ask("kv", "get", "secret", **lies)["error"] == "kv: no such key: 'secret'"
        denied = other.ask("slow", **lies)["error"]
        assert denied == "Permission denied: tool 'slow' not allowed for agent 'other'"
    for record in audit(house)[2:]:
        assert record["agent"] == "other"
        assert not record.get("session")
        assert not record.get("channel")


def test_hundreds_of_pipelined_calls_from_several_connections(house: House) -> None:
    agents = [Agent(house, "travel") for _ in range(8)]
    for number, agent in enumerate(agents):
        for turn in range(50):
            agent.send("kv", "set", f"{number}-{turn}", "x", id=turn)
    for agent in agents:
        assert [agent.answer()["id"] for _ in range(50)] == list(range(50))
        agent.close()
    assert sum(1 for r in audit(house) if r["phase"] == "finished" and r["exitCode"] == 0) == 400


def test_a_disconnect_reaches_the_plugin_and_the_audit_log(house: House) -> None:
    marks = house.home.data / "plugins" / "slow"
    travel = Agent(house, "travel")
    travel.send("slow")
    wait_for((marks / "started").exists)
    travel.close()
    wait_for((marks / "ended").exists)
    wait_for(lambda: any(r["phase"] == "finished" for r in audit(house)))


def test_with_a_part_of_the_way_down_the_answer_says_so_and_nothing_runs(house: House) -> None:
    with Agent(house, "travel") as travel:
        for part in ("policy", "audit", "tools"):
            house.stop(part)
            answer = travel.ask("kv", "set", part, "x")
            assert (answer["success"], answer["exitCode"]) == (False, 75), answer
            assert str(house.home.root) not in answer["error"]
            house.start(part)
        wait_for(lambda: travel.ask("kv", "list")["success"])
        assert travel.ask("kv", "list")["output"] == ""


def test_a_restarted_bridge_is_reachable_through_the_same_directory(house: House) -> None:
    directory = house.home.agent_sockets("travel")
    handle = os.open(directory, os.O_PATH)  # as the container's mount does
    try:
        before = os.fstat(handle).st_ino
        for end in (house.kill, house.stop):
            end("bridge")
            house.start("bridge")
            assert directory.stat().st_ino == before
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"/proc/self/fd/{handle}/gateway.sock")
            with Agent(house, "travel") as travel:
                assert travel.ask("kv", "set", "k", "v")["success"]
    finally:
        os.close(handle)
    assert house.stop("bridge") == 0
    assert not house.home.gateway_socket("travel").exists()


def test_a_broker_that_is_killed_costs_calls_not_connections(house: House) -> None:
    with Agent(house, "travel") as travel:
        assert travel.ask("kv", "set", "k", "v")["success"]
        house.kill("broker")
        unsure = travel.ask("kv", "get", "k")  # may be on its way before the loss is noticed
        assert not unsure["success"] and unsure["exitCode"] == 75
        down = travel.ask("kv", "get", "k")
        assert (down["error"], down["exitCode"]) == ("the gateway's bus is down", 75)
        house.start("broker")
        wait_for(lambda: travel.ask("kv", "get", "k")["success"])
        assert travel.ask("kv", "get", "k")["output"] == "v"


def test_the_bridge_can_do_nothing_but_tool_calls(house: House) -> None:
    environment = Path(f"/proc/{house.processes['bridge'].pid}/environ").read_bytes()
    assert b"KEY" not in environment
    with Agent(house, "travel") as travel:
        assert travel.ask("exec", "true")["exitCode"] == 1
        assert travel.ask("sandbox.exec", "true")["exitCode"] == 1
