"""Threat: an agent that floods its socket, to exhaust the gateway or to keep the other agents waiting."""

from __future__ import annotations

import asyncio
import json

import pytest

from beige.messages.sandbox import ExecRequest

pytestmark = pytest.mark.docker

LIST = {"type": "tool_request", "tool": "kv", "args": ["list"]}
JUNK = {
    "not JSON": "hello",
    "empty": "",
    "an array": "[]",
    "a number": "1e999",
    "cut off": '{"type":"tool_request","tool":"kv"',
    "deep": "[" * 100_000,
    "deep objects": '{"agent":' * 50_000,
    "not UTF-8": '{"type":"tool_request","tool":"kv\udcff"}',
    "a lone surrogate": '{"type":"tool_request","tool":"kv","args":["\\ud800"]}',
    "arguments that are no strings": '{"type":"tool_request","tool":"kv","args":[1,null]}',
    "too many arguments": json.dumps({"type": "tool_request", "tool": "kv", "args": ["x"] * 4001}),
    "a long name": json.dumps({"type": "tool_request", "tool": "k" * 65}),
    "NUL bytes": "\0" * 1000,
}


@pytest.mark.parametrize("line", JUNK.values(), ids=JUNK)
def test_junk_is_answered_and_the_connection_goes_on(gateway, line):
    with gateway.recorded() as records:
        first, second = gateway.travel.speak(line, LIST)
    assert (first["success"], first["exitCode"]) == (False, 2), first
    assert second["success"], "control"
    assert {r["tool"] for r in records if r["type"] == "tool"} == {"kv"}
    assert sum(r["type"] == "tool" for r in records) == 2


LONG = """
import json, socket
with socket.socket(socket.AF_UNIX) as s:
    s.connect("/beige/gateway.sock")
    answers = s.makefile("rb")
    for size in (4 << 20, 450_000):
        arguments = ["get", "x" * size, "x" * size]
        s.sendall(json.dumps({"type": "tool_request", "tool": "kv", "args": arguments}).encode() + b"\\n")
        print(json.loads(answers.readline())["error"].splitlines()[0])
"""


def test_a_line_over_the_limit_is_dropped_and_the_connection_goes_on(gateway):
    with gateway.recorded() as records:
        long, control = gateway.travel.python(LONG).out.splitlines()
    assert long == "the request is longer than 1048576 bytes"
    assert control == "kv: get takes one KEY", "control: a long one reached the tool"
    assert sum(r["type"] == "tool" for r in records) == 2


CONNECTIONS = """
import json, socket, sys
line = json.dumps({"type": "tool_request", "tool": "kv", "args": ["list"]}).encode() + b"\\n"
held, refused = [], 0
for _ in range(100):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect("/beige/gateway.sock")
    try:
        s.sendall(line)
        answer = s.makefile("rb").readline()
    except ConnectionError:
        answer = b""
    if answer and json.loads(answer)["success"]:
        held.append(s)
    else:
        refused += 1
        s.close()
print(len(held), refused)
"""


def test_connections_beyond_64_are_refused_and_free_again(gateway):
    for _ in range(2):
        assert gateway.travel.python(CONNECTIONS).out == "64 36\n"
    assert gateway.travel.tool("kv", "list")["success"]


HALF = """
import socket, time
held, closed = [], 0
for _ in range(60):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect("/beige/gateway.sock")
    try:
        s.sendall(b'{"type":"tool_request","tool":"kv","args":["' + b"x" * 900_000)
    except ConnectionError:
        pass
    held.append(s)
for s in held:
    s.setblocking(False)
    try:
        closed += s.recv(1) != b"?"
    except BlockingIOError:
        pass
    except ConnectionError:
        closed += 1
print(closed, len(held) - closed)
"""


def test_half_lines_take_bounded_memory(gateway):
    """54 MB of unfinished requests: what goes over 16 MiB is hung up on."""
    with gateway.recorded() as records:
        closed, kept = map(int, gateway.travel.python(HALF).out.split())
    assert kept * 900_000 <= 16 * 1024 * 1024 < (kept + 2) * 900_000
    assert closed + kept == 60
    assert not [r for r in records if r["type"] == "tool"], "half a line is no call"
    assert gateway.travel.tool("kv", "list")["success"]


FLOOD = """
import json, os, socket, sys, time
line = json.dumps({"type": "tool_request", "tool": "kv", "args": ["list"]}).encode() + b"\\n"
open("/workspace/flooding", "w").close()
connections = []
for _ in range(48):
    s = socket.socket(socket.AF_UNIX)
    s.connect("/beige/gateway.sock")
    s.setblocking(False)
    connections.append(s)
sent = got = 0
end = time.monotonic() + 90
while (got <= 500 or not os.path.exists("/workspace/enough")) and time.monotonic() < end:
    for s in connections:
        try:
            sent += s.send(line * 20) // len(line)
        except BlockingIOError:
            pass
        try:
            got += s.recv(65536).count(b"\\n")
        except BlockingIOError:
            pass
print(sent, got, os.path.exists("/workspace/enough"))
"""


def test_a_flood_of_one_agent_leaves_the_other_answered(gateway):
    """`other` calls its tool while travel sends as much as it can, and stops only when that is done; then
    all is as before."""
    call = ExecRequest("kv list >/dev/null && echo ok")

    async def work(bus):
        await bus.call("sandbox.exec", ExecRequest("rm -f flooding enough"), agent="travel")
        flood = asyncio.create_task(
            bus.call("sandbox.exec", ExecRequest(argv=["python3", "-c", FLOOD]), agent="travel", ttl_s=120)
        )
        waiting = ExecRequest("while [ ! -e flooding ]; do sleep .02; done")
        await bus.call("sandbox.exec", waiting, agent="travel")
        for _ in range(5):
            assert (await bus.call("sandbox.exec", call, agent="other")).stdout == b"ok\n"
        await bus.call("sandbox.exec", ExecRequest("touch enough"), agent="travel")
        return (await flood).stdout

    sent, got, stopped = gateway.operate(work).split()
    assert int(sent) >= int(got) > 500, "control: it was a flood"
    assert stopped == b"True", "control: it went on until it was told to stop"
    assert gateway.travel.tool("kv", "list")["success"]
