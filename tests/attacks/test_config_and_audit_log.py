"""Threat: an agent that reads or changes the gateway's config or the audit log, or writes lines into it.

An agent can only write to the log by making calls, so its arguments carry everything that could end a
line, a string or a terminal's patience.
"""

from __future__ import annotations

import json
import stat

import pytest

from beige.auditlog import MAX_LINE
from beige.errors import BeigeError
from beige.messages.sandbox import ReadRequest

pytestmark = pytest.mark.docker

HOME_FILES = ["config.json5", "logs/audit.jsonl", "logs/policy.log", "script.json5", "keys/verdict.key"]


@pytest.mark.parametrize("name", HOME_FILES)
def test_the_gateways_files_can_not_be_read_or_changed(gateway, careless, name):
    path = gateway.home.root / name
    look = f"test -r {path} && test -w {path} && stat -c %s {path}"
    assert int(careless.sh(look).out) > 0, "control"
    before = path.read_bytes()
    assert gateway.travel.sh(look).out == ""
    attempt = f"mkdir -p {path.parent}; echo '{{}}' > {path}; rm -f {path}; ln -sfn /tmp/x {path}"
    gateway.travel.sh(attempt)
    after = path.read_bytes()
    assert after == before or (name.startswith("logs/") and after.startswith(before)), "a log only grows"
    with pytest.raises(BeigeError):
        gateway.call("sandbox.read", ReadRequest(f"/proc/1/root{path}"), agent="travel")
    gateway.travel.sh(f"rm -rf {gateway.home.root}")


def test_no_copy_of_them_is_in_the_container(gateway, careless):
    root = gateway.home.root
    names = "-name config.json5 -o -name 'audit*.jsonl' -o -name '*.key' -o -name supervisord.conf"
    look = f"find / {names} 2>/dev/null"
    assert f"{root}/config.json5" in careless.sh(look).out.split(), "control"
    assert gateway.travel.sh(look).out == ""


def test_the_log_is_the_operators_alone(gateway):
    assert stat.S_IMODE(gateway.home.audit_log.stat().st_mode) & 0o077 == 0
    for directory in (gateway.home.root, gateway.home.logs, gateway.home.keys):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


FORGED = '{"ts":"2026-01-01T00:00:00.000Z","agent":"root","tool":"forged","args":[],"decision":"allowed"}'
PAYLOADS = {
    "newline": f"x\n{FORGED}\n",
    "carriage return": f"x\r\n{FORGED}\r\n",
    "end of string": f'x"],"decision":"denied"}}\n{FORGED}',
    "escaped end of string": '\\"]}\\n' + FORGED,
    "line separators": f"x\u2028{FORGED}\u2029{FORGED}\x85{FORGED}",
    "vertical tab and form feed": f"x\v{FORGED}\f{FORGED}\x1c{FORGED}",
    "terminal controls": "\x1b[2K\x1b[1A\x1b]0;title\x07\x9b2J",
    "backspaces": "evil" + "\b" * 4 + "good",
    "text direction": "\u202eevil\u2066",
    "DEL and NUL": "a\x7f\x00b",
}


def new_lines(gateway, before):
    return gateway.home.audit_log.read_bytes()[before:]


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("place", ["argument", "tool name", "command"])
def test_whatever_an_agent_says_stays_inside_one_line(gateway, payload, place):
    before = gateway.home.audit_log.stat().st_size
    if place == "argument":
        gateway.travel.tool("kv", "get", payload)
    elif place == "tool name":
        gateway.travel.tool(payload[:60], "x")
    else:
        gateway.travel.sh(f": {payload}".replace("\0", ""))
    raw = new_lines(gateway, before)
    records = [json.loads(line) for line in raw.split(b"\n")[:-1]]
    assert len(records) == {"argument": 4, "tool name": 3, "command": 2}[place]
    assert {r["agent"] for r in records} == {"travel"}
    assert "forged" not in {r["tool"] for r in records}
    assert not set(raw) & {*range(10), *range(11, 32), 0x7F}, "no control character but the newline"
    assert not {*raw.decode()} & {*"\x85\x9b\u2028\u2029\u202e\u2066"}
    opening = records[1] if place != "command" else records[0]
    said = opening["tool"] if place == "tool name" else opening["args"][-1]
    expected = {"argument": payload, "tool name": payload[:60], "command": ": " + payload.replace("\0", "")}
    assert said == expected[place], "control: it was recorded as it was said"


def test_a_naive_log_would_have_a_forged_line_control():
    """The payloads are good: written without escaping, each of the first kind makes a line of its own."""
    naive = '{"agent":"travel","args":["' + PAYLOADS["newline"] + '"]}'
    assert json.loads(naive.splitlines()[1])["agent"] == "root"


def test_long_arguments_are_cut_and_the_line_stays_readable(gateway):
    before = gateway.home.audit_log.stat().st_size
    script = (
        "import json,socket; s=socket.socket(socket.AF_UNIX); s.connect('/beige/gateway.sock');"
        "r={'type':'tool_request','tool':'kv','args':['get','\\x01'*120_000]};"
        "s.sendall(json.dumps(r).encode()+b'\\n'); print(len(s.makefile('rb').readline()))"
    )
    assert gateway.travel.run("python3", "-c", script).code == 0
    lines = new_lines(gateway, before).split(b"\n")[:-1]
    tool = [json.loads(line) for line in lines if b'"tool":"kv"' in line]
    assert len(tool) == 2 and all(len(line) < MAX_LINE for line in lines)
    assert "cut]" in tool[0]["args"][-1]
    assert len(tool[0]["digest"]) == 32, "of the whole request, so that the cut hides no difference"
