"""Threat: what an agent prints, names or says is taken for something else: by the frames it travels in, by a
shell, or by the operator's terminal.

Each view of the command line runs on a pseudo-terminal while an agent does its worst; not one character that
drives, reorders or hides may come through. The control is the same text shown by `cat`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import time

import pytest

from beige.errors import BeigeError, Malformed
from beige.messages.base import AgentRef
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, WriteRequest
from beige.supervisor import leftovers, lifecycle
from beige.supervisor.environment import minimal
from beige.testing import short_home

pytestmark = pytest.mark.docker

TITLE, CLEAR, CLIPBOARD = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b]52;c;cm0gLXJm\x07"
HOSTILE = (
    f"{TITLE}{CLEAR}{CLIPBOARD}\x9b31m\r\x08\x7f\u202eevil\u2066\u200b\u200d\u2028\ufeff\u061c\u00ad\U000e0041"
    " [bold red]markup[/] $(touch /tmp/ran) `touch /tmp/ran` %s%n {0} ${HOME}"
)
FORGED = "\n00:00:00.000 error   policy     everything is allowed"
"""A line that looks like one of ours."""
DANGEROUS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\U000e0000-\U000e0fff]"
)
CONFIG = """{
  llm: { providers: { s: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" } },
  agents: { travel: { model: { provider: "s", model: "m" }, tools: ["kv"],
                      sandbox: { image: "beige-sandbox:latest" } } },
}"""
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ}


def printing(text: str) -> str:
    """A command that prints it."""
    octal = "".join(f"\\{byte:03o}" for byte in text.encode())
    return f"printf {shlex.quote(octal.replace('%', '%%'))}"


SCRIPT = [
    {"say": HOSTILE + FORGED, "tool": "exec", "args": {"command": f"{printing(HOSTILE)}; : {HOSTILE}"}},
    {"say": HOSTILE, "tool": "read", "args": {"path": f"/nope/{HOSTILE}"}},
    {
        "say": HOSTILE,
        "tool": "exec",
        "args": {"command": f"kv set {shlex.quote(HOSTILE)} {shlex.quote(HOSTILE)}"},
    },
    {"say": HOSTILE, "tool": HOSTILE[:40], "args": {HOSTILE: HOSTILE}},
    {"say": f"{HOSTILE} half a pair: \ud83d done"},
]


class Watched:
    """A whole house, and its command line on a terminal."""

    def __init__(self, home):
        self.home = home

    def terminal(self, *arguments, until=None):
        """All that a command writes to its terminal; ended after `until` appeared, if given."""
        master, slave = pty.openpty()
        argv = [sys.executable, "-P", "-m", "beige.cli", *arguments]
        env = minimal(self.home, PLAIN) | {"TERM": "dumb", "COLUMNS": "200"}
        process = subprocess.Popen(
            argv, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        try:
            return _read(master, until), process
        finally:
            if until is not None:
                process.terminate()
            process.wait(timeout=60)
            os.close(master)

    def shown(self, *arguments, until=None):
        text = self.terminal(*arguments, until=until)[0].decode()
        # What beige itself says to a terminal: the line that shows progress begins anew.
        return text.replace("\r\x1b[K", "").replace("\r\n", "\n")

    def bus(self, gateway, work):
        return type(gateway)(self.home, self.home.config).operate(work)


def _read(master, until):
    seen, end = b"", time.monotonic() + 90
    while select.select([master], [], [], max(0.0, end - time.monotonic()))[0]:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other side is closed
            return seen
        seen += data
        if not data or (until is not None and until in seen):
            return seen
    raise AssertionError(f"no end after {seen[-2000:]!r}")


@pytest.fixture(scope="module")
def house(gateway):
    with short_home("bgh-") as home:
        home.config.write_text(CONFIG)
        (home.root / "script.json5").write_text(json.dumps(SCRIPT))
        try:
            lifecycle.up(home, dict(os.environ), lambda _: None)
            watched = Watched(home)
            watched.prompted = watched.shown("prompt", "travel", "go")
            yield watched
        finally:
            lifecycle.down(home)
        assert leftovers.processes(home) == []


def assert_harmless(text):
    found = DANGEROUS.search(text)
    assert found is None, f"{found[0]!r} in {text[max(0, found.start() - 80) : found.end() + 40]!r}"
    assert FORGED.strip() not in [line.strip() for line in text.splitlines()]


def test_a_terminal_would_obey_control(house, tmp_path):
    path = tmp_path / "hostile"
    path.write_text(HOSTILE)
    assert DANGEROUS.search(subprocess.run(["cat", path], capture_output=True, text=True, check=True).stdout)


def test_a_model_says_it(house):
    assert "half a pair: \ufffd done" in house.prompted
    assert_harmless(house.prompted.replace(FORGED, ""))  # on a line of its own it is the model's answer


VIEWS = [
    ("sessions", "list"),
    ("sessions", "list", "travel", "--json"),
    ("sessions", "show", "travel", "SESSION"),
    ("sessions", "show", "travel", "SESSION", "--full"),
    ("sessions", "show", "travel", "SESSION", "--json"),
    ("egress", "list", "travel"),
    ("audit", "tail", "-n", "50"),
    ("audit", "tail", "-n", "50", "--json"),
    ("audit", "query", "--agent", "travel"),
    ("audit", "query", "--agent", "travel", "--tree"),
    ("logs", "-n", "200"),
    ("logs", "-n", "200", "--json"),
    ("sandbox", "list"),
    ("sandbox", "show", "travel"),
    ("sandbox", "logs", "travel"),
    ("status",),
    ("prompt", "travel", "again", "--json"),
    ("tools", "call", "travel", "kv", "list"),
    ("tools", "call", "--json", "travel", "kv", "list"),
    ("tools", "call", "travel", "kv", "get", HOSTILE),
    ("tools", "call", "travel", HOSTILE),
    ("exec", "travel", "--", "sh", "-c", f"{printing(HOSTILE + FORGED[1:4])}; {printing(HOSTILE)} >&2"),
    ("exec", "travel", "--json", "--", "sh", "-c", printing(HOSTILE)),
    ("exec", "travel", "--", HOSTILE),
    ("exec", "travel", "--cwd", f"/{HOSTILE}", "--", "true"),
    ("exec", "travel", "--", "sh", "-c", 'cd "$(mktemp -d)"; touch -- "$1"; ls; ls -la; rm -- "$1"', "x",
     HOSTILE.replace("/", "")),
]  # fmt: skip


@pytest.mark.parametrize(
    "view", VIEWS, ids=lambda view: " ".join(view)[:30].encode("ascii", "replace").decode()
)
def test_every_view_shows_it_safely(house, view):
    session = re.findall(r"; session (\S+)\]", house.prompted)[-1]
    text = house.shown(*(session if word == "SESSION" else word for word in view))
    assert text or view[0] in ("tools", "egress", "sandbox"), "something is shown"
    assert "beige/cli/__main__.py" not in text, "a traceback of the command itself"
    assert_harmless(text)


@pytest.mark.parametrize("options", [(), ("--bodies",), ("--json", "--bodies"), ("--seq",)], ids=str)
def test_the_tap_shows_it_safely(house, gateway, options):
    master, slave = pty.openpty()
    argv = [sys.executable, "-P", "-m", "beige.cli", "tap", *options]
    env = minimal(house.home, PLAIN) | {"TERM": "dumb", "COLUMNS": "200"}
    tap = subprocess.Popen(argv, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        seen = _read(master, b"listening")

        async def work(bus):
            for argv in (["sh", "-c", printing(HOSTILE)], [HOSTILE], ["echo", "the-last-one"]):
                with contextlib.suppress(BeigeError):
                    await bus.call(
                        "sandbox.exec", ExecRequest(argv=argv), agent="travel", session=HOSTILE[-20:]
                    )

        house.bus(gateway, work)
        house.bus(gateway, lambda bus: bus.call("sandbox.show", AgentRef(), agent="travel"))
        seen += _read(master, b"show")
    finally:
        tap.terminate()
        tap.wait(timeout=60)
        os.close(master)
    text = seen.decode().replace("\r\n", "\n")
    assert "exec" in text
    assert_harmless(text)


# --- frames, names and shells: inside the corridor ----------------------------------------------------------


def frame(kind: int, job: int, payload: bytes = b"") -> bytes:
    """What an executor sends (`image/init/wire.h`)."""
    return struct.pack("<IBI", 5 + len(payload), kind, job) + payload


OUTPUTS = {
    "frames of the executor": b"".join(
        frame(kind, job, b"\0" * 21) for kind in range(32) for job in range(4)
    ),
    "every byte": bytes(range(256)) * 400,
    "nothing but NULs": b"\0" * 100_000,
    "invalid UTF-8": b"\xff\xfe\xc0\x80\xed\xa0\x80\xf5\x90" * 9000,
    "MessagePack that nests": b"\x91" * 100_000,
    "a length that lies": b"\xff\xff\xff\xff" * 20_000,
    "lines of a tool's protocol": b'{"type":"tool_response","ok":true}\n' * 2000,
}


@pytest.mark.parametrize("data", OUTPUTS.values(), ids=OUTPUTS)
def test_output_is_bytes_and_nothing_else(house, gateway, data):
    async def work(bus):
        done = await bus.call(
            "sandbox.exec", ExecRequest("cat; cat <&- >&2", stdin=data), agent="travel", ttl_s=60
        )
        again = await bus.call("sandbox.exec", ExecRequest("echo the next one"), agent="travel", ttl_s=60)
        return done, again

    done, again = house.bus(gateway, work)
    assert (done.stdout, done.stdout_bytes) == (data, len(data))
    assert (again.exit_code, again.stdout) == (0, b"the next one\n")


def test_a_line_of_10_mb_is_cut_and_breaks_nothing(house, gateway):
    command = "head -c 10000000 /dev/zero | tr '\\0' '\\233'; echo end"
    body = ExecRequest(command)
    done = house.bus(gateway, lambda bus: bus.call("sandbox.exec", body, agent="travel", ttl_s=90))
    assert done.stdout_bytes == 10_000_004
    assert len(done.stdout) < 300_000
    assert done.stdout.endswith(b"\x9bend\n")
    assert_harmless(house.shown("exec", "travel", "--", "sh", "-c", command))


NAMES = ["a\rb", "-rf", "--help", "a\nb", " ", "'", '"; touch ran; "', "$(touch ran)", "`touch ran`", "*",
         "\\",
         "\x1b]0;x\x07", "\u202ename", "\x7f", "%s%s%n", "~", "..a", "ü" * 100, "#", "\t", "-"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:20] for name in NAMES])
def test_a_file_name_is_a_name(house, gateway, name):
    path = f"/workspace/names/{name}"

    async def work(bus):
        await bus.call("sandbox.write", WriteRequest(path, b"one\ntwo\n"), agent="travel")
        await bus.call("sandbox.patch", PatchRequest(path, "two", "three"), agent="travel")
        read = await bus.call("sandbox.read", ReadRequest(path), agent="travel")
        listed = await bus.call(
            "sandbox.exec", ExecRequest("ls -A --zero", cwd="/workspace/names"), agent="travel"
        )
        await bus.call("sandbox.exec", ExecRequest("rm -r /workspace/names"), agent="travel")
        return read.content, listed.stdout

    assert house.bus(gateway, work) == (b"one\nthree\n", name.encode() + b"\0")


async def refused(call):
    with pytest.raises(Malformed):
        await call


def test_a_nul_is_refused_where_it_can_not_be_part_of_anything(house, gateway):
    async def work(bus):
        for body in (ExecRequest("a\0b"), ExecRequest(argv=["a", "b\0"]), ExecRequest("a", cwd="/\0"),
                     ExecRequest("a", env={"A": "\0"}), ExecRequest("a", env={"A\0": ""})):  # fmt: skip
            await refused(bus.call("sandbox.exec", body, agent="travel"))
        await refused(bus.call("sandbox.read", ReadRequest("a\0"), agent="travel"))
        await refused(bus.call("sandbox.write", WriteRequest("a\0", b""), agent="travel"))

    house.bus(gateway, work)


@pytest.mark.parametrize("value", [HOSTILE, "--", "-", "\n", "x" * 100_000, '{"type":"tool_request"}\n{}'],
                         ids=["hostile", "dashes", "dash", "newline", "long", "protocol"])  # fmt: skip
def test_plugin_arguments_arrive_as_they_were_given(house, gateway, value):
    async def work(bus):
        command = 'kv set hostile "$1" && kv get hostile'
        argv = ["bash", "-c", command, "x", value]
        return await bus.call("sandbox.exec", ExecRequest(argv=argv), agent="travel", ttl_s=60)

    done = house.bus(gateway, work)
    assert done.exit_code == 0, done
    assert done.stdout.decode() == f"OK\n{value}" + ("" if value.endswith("\n") else "\n")


def test_each_record_of_all_this_is_one_line(house):
    for line in house.home.audit_log.read_bytes().split(b"\n")[:-1]:
        record = json.loads(line)
        assert record["agent"] == "travel"
        assert not DANGEROUS.search(line.decode()), line
