"""Threat: an agent that uses a tool without a record of it.

There is one way to a tool, the socket; whatever speaks there is recorded before it is executed, and
answered after the record is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from beige.errors import BeigeError
from beige.messages.sandbox import PatchRequest, ReadRequest, WriteRequest
from beige.supervisor.control import Control

pytestmark = pytest.mark.docker

DIRECT = """
import json, socket
s = socket.socket(socket.AF_UNIX)
s.connect("/run/beige/gateway.sock")
s.sendall(json.dumps({"type": "tool_request", "tool": "kv", "args": ["set", "way", "x"]}).encode() + b"\\n")
assert json.loads(s.makefile().readline())["success"]
"""
DENO = """
const c = await Deno.connect({transport: "unix", path: "/beige/gateway.sock"});
await c.write(new TextEncoder().encode('{"type":"tool_request","tool":"kv","args":["set","way","x"]}\\n'));
const b = new Uint8Array(999); const n = await c.read(b);
if (!JSON.parse(new TextDecoder().decode(b.subarray(0, n))).success) Deno.exit(1);
"""
WAYS = {
    "the launcher": "kv set way x",
    "its path": "/tools/bin/kv set way x",
    "the tool client": "/beige/tool-client kv set way x",
    "a copy of the tool client": "cp /beige/tool-client mine && ./mine kv set way x && rm mine",
    "a script": "printf 'kv set way x' > s && sh s && rm s",
    "from python": 'python3 -c \'import subprocess; subprocess.check_call(["kv", "set", "way", "x"])\'',
    "the socket, from python": f"python3 -c '{DIRECT}'",
    "the socket, from deno": f"cat > d.ts <<'E'\n{DENO}\nE\ndeno run -A -q d.ts && rm d.ts",
    "the socket's other name": "cd /run/beige && " + f"python3 -c '{DIRECT}'".replace("/run/beige/", "./"),
    "without a token": "env -i /beige/tool-client kv set way x",
    "in the background": "(kv set way x) & wait",
    "from another session of processes": "setsid --wait kv set way x",
}


@pytest.mark.parametrize("command", WAYS.values(), ids=WAYS)
def test_each_way_to_a_tool_is_recorded(gateway, command):
    with gateway.recorded() as records:
        gateway.travel.out(command)
    tool = [r for r in records if r["type"] == "tool"]
    assert [(r["agent"], r["tool"], r["args"], r["decision"], r["phase"]) for r in tool] == [
        ("travel", "kv", ["set", "way", "x"], "allowed", "started"),
        ("travel", "kv", ["set", "way", "x"], "allowed", "finished"),
    ]


def test_a_command_that_calls_no_tool_has_no_tool_record_control(gateway):
    with gateway.recorded() as records:
        gateway.travel.out("true")
    assert [(r["type"], r["tool"]) for r in records] == [("core_tool", "exec")] * 2


CORE = {
    "read": ("sandbox.read", ReadRequest("/workspace/logged")),
    "write": ("sandbox.write", WriteRequest("/workspace/logged", b"x")),
    "patch": ("sandbox.patch", PatchRequest("/workspace/logged", "x", "y")),
}


@pytest.mark.parametrize("tool", CORE)
def test_each_core_tool_is_recorded_whether_it_works_or_not(gateway, tool):
    method, body = CORE[tool]
    for prepare in ("rm -rf logged; mkdir logged", "rm -rf logged; echo x > logged"):
        gateway.travel.out(prepare)
        with gateway.recorded() as records, contextlib.suppress(BeigeError):
            gateway.call(method, body, agent="travel")
        assert [(r["tool"], r["phase"], r["args"]) for r in records] == [
            (tool, "started", ["/workspace/logged"]),
            (tool, "finished", ["/workspace/logged"]),
        ]


class Client:
    """A process in travel's container, as far as the bridge can tell."""

    def __init__(self, gateway):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(gateway.home.gateway_socket("travel")))
        self._file = self._socket.makefile("rb")

    def send(self, *args, end=b"\n"):
        request = {"type": "tool_request", "tool": "kv", "args": args}
        self._socket.sendall(json.dumps(request).encode() + end)

    def answer(self):
        return json.loads(self._file.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()
        self._socket.close()


def test_the_record_is_complete_when_the_answer_arrives(gateway):
    with Client(gateway) as client:
        for number in range(20):
            with gateway.recorded() as records:
                client.send("set", "way", str(number))
                assert client.answer()["success"]
            assert [r["phase"] for r in records] == ["started", "finished"]
            assert records[0]["args"] == ["set", "way", str(number)]


def test_half_a_request_is_neither_executed_nor_recorded(gateway):
    with gateway.recorded() as records:
        with Client(gateway) as client:
            client.send("set", "half", "x", end=b"")
        with Client(gateway) as client:
            client.send("get", "half")
            assert not client.answer()["success"]
    assert [r["args"] for r in records] == [["get", "half"]] * 2


def pid_of(gateway, program):
    return next(p.pid for p in Control(gateway.home).processes() if p.program == program)


@pytest.mark.slow
def test_without_an_audit_log_nothing_is_executed(gateway):
    """Audit is stopped, as a hang would: the call ends without having run, and others go on later."""
    audit = pid_of(gateway, "audit")
    with Client(gateway) as client:
        os.kill(audit, signal.SIGSTOP)
        try:
            client.send("set", "unrecorded", "x")
            answer = client.answer()
        finally:
            os.kill(audit, signal.SIGCONT)
        assert not answer["success"] and answer["exitCode"] == 75, answer
        pause = threading.Event()
        client.send("get", "unrecorded")
        while (answer := client.answer()).get("exitCode") == 75:
            pause.wait(0.05)
            client.send("get", "unrecorded")
        assert answer["error"] == "kv: no such key: 'unrecorded'"
        client.send("set", "unrecorded", "x")
        assert client.answer()["success"], "control"
        client.send("del", "unrecorded")
        assert client.answer()["output"] == "1"


def test_no_other_process_of_the_gateway_has_a_socket_inside(gateway):
    """Of the kernel's list of Unix sockets a container sees only its own network namespace."""
    names = set(gateway.travel.out("awk 'NR > 1 {print $8}' /proc/net/unix").split())
    own = gateway.home.agent_sockets("travel")
    assert names <= {str(own / "exec.sock"), str(own / "gateway.sock")}
    on_the_host = Path("/proc/net/unix").read_text()
    assert all(str(path) in on_the_host for path in (gateway.home.bus_socket, own)), "control"
