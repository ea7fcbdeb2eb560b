"""The operator's commands over a whole house with real containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from beige.paths import Home
from beige.supervisor import environment, leftovers, lifecycle
from beige.testing import short_home

pytestmark = pytest.mark.docker
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ}
WAIT_S = 60.0
CONFIG = """{
  llm: { providers: { s: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" } },
  agents: {
    a: {
      model: { provider: "s", model: "m" }, tools: ["kv"], sandbox: { image: "beige-sandbox:latest" },
      systemPrompt: "${MOTTO}",
    },
  },
}"""
SCRIPT = """{ scripts: [
  { name: "sleep", when: "sleep", steps: [
    { tool: "exec", args: { command: "echo on; sleep 60; echo survived >/workspace/survived" } } ] },
  { name: "work", steps: [
    { say: "I run it.", tool: "exec",
      args: { command: "echo out; echo err >&2; kv set city Rome; kv get city" } },
    { say: "It said {{last.stdout}}" }, { say: "Again." } ] },
] }"""


@pytest.fixture(scope="module")
def house(docker_ready: None) -> Iterator[Home]:
    with short_home() as home:
        home.config.write_text(CONFIG)
        (home.root / "script.json5").write_text(SCRIPT)
        try:
            done = beige(home, "up", MOTTO="m")
            assert done.returncode == 0, done.stderr
            yield home
        finally:
            lifecycle.down(home)
            assert leftovers.processes(home) == []


def start(home: Home, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=environment.minimal(home, PLAIN) | environ,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def beige(
    home: Home, *arguments: str, stdin: bytes = b"", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    process = start(home, *arguments, **environ)
    try:
        out, err = process.communicate(stdin, timeout=WAIT_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def test_exec_keeps_streams_bytes_and_exit_code_apart(house: Home) -> None:
    done = beige(house, "exec", "a", "--", "sh", "-c", r"printf '\377\000\033[1m'; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"\xff\x00\x1b[1m", b"err\n")


def test_exec_passes_arguments_and_standard_input_untouched(house: Home) -> None:
    nasty = "a b'c\"d $HOME `id` \\ ü"
    done = beige(
        house, "exec", "a", "-i", "--", "sh", "-c", 'printf %s "$1"; cat', "-", nasty, stdin=b"\x00in"
    )
    assert (done.returncode, done.stdout) == (0, nasty.encode() + b"\x00in")


def test_exec_output_comes_as_it_is_produced(house: Home) -> None:
    process = start(house, "exec", "a", "--", "sh", "-c", "echo first; read never < /dev/null; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130


def test_exec_over_its_time_is_said(house: Home) -> None:
    done = beige(house, "exec", "a", "--timeout", "0.5", "--", "sleep", "60")
    assert done.returncode == 124
    assert b"its time was over" in done.stderr


def test_exec_as_json(house: Home) -> None:
    done = beige(house, "exec", "a", "--json", "--", "sh", "-c", "echo x; exit 3")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["stdout"]) == (0, 3, "x\n")


def test_a_tool_is_called_and_another_one_denied(house: Home) -> None:
    assert beige(house, "tools", "call", "a", "kv", "set", "k", "-v").stdout == b"OK\n"
    assert beige(house, "tools", "call", "a", "kv", "get", "k").stdout == b"-v\n"
    denied = beige(house, "tools", "call", "a", "git", "push")
    assert denied.returncode == 1
    assert b"Permission denied: tool 'git' not allowed for agent 'a'" in denied.stderr


def test_a_turn_puts_the_answer_on_one_stream_and_the_work_on_the_other(house: Home) -> None:
    done = beige(house, "prompt", "a", "go", "--session", "one")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == "I run it.\nIt said out\nOK\nRome\n"
    err = done.stderr.decode()
    assert "scripted model" in err.splitlines()[0]
    assert "> exec echo out" in err and "session one]" in err
    again = beige(house, "prompt", "a", "-", "--continue", stdin=b"and now?")
    assert again.stdout == b"Again.\n"
    assert b"session one]" in again.stderr


def test_a_turn_as_json_lines(house: Home) -> None:
    lines = [json.loads(line) for line in beige(house, "prompt", "a", "go", "--json").stdout.splitlines()]
    assert [line["kind"] for line in lines[:2]] == ["accepted", "notice"]
    assert lines[-1]["type"] == "result" and lines[-1]["scripted"] is True
    assert {"tool_start", "tool_output", "tool_end", "text_delta"} <= {line.get("kind") for line in lines}


def test_cancelling_a_session_kills_its_command_in_the_container_and_it_can_be_used_again(
    house: Home,
) -> None:
    process = start(house, "prompt", "a", "sleep", "--session", "long")
    assert process.stderr is not None
    while (line := process.stderr.readline()) and line != b"  | on\n":
        pass
    assert line == b"  | on\n"
    cancelled = beige(house, "sessions", "cancel", "a", "long", "--json")
    assert json.loads(cancelled.stdout) == {"cancelled": 1}
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1 and b"an operator cancelled" in err
    # The next prompt waits for the session, so for the clean-up.
    again = beige(house, "prompt", "a", "and now?", "--session", "long")
    assert again.returncode == 0, again.stderr
    left = beige(house, "exec", "a", "--", "sh", "-c", "cat /proc/[0-9]*/comm; ls /workspace")
    assert b"\nsh\n" in left.stdout, "processes can be seen"
    assert b"sleep" not in left.stdout and b"survived" not in left.stdout
    shown = beige(house, "sessions", "show", "a", "long").stdout
    assert b"[the turn ended: cancelled]" in shown and b"may or may not have been executed" in shown


def test_ctrl_c_ends_the_turn_and_what_it_was_running(house: Home) -> None:
    process = start(house, "prompt", "a", "sleep")
    assert process.stderr is not None
    while (line := process.stderr.readline()) and line != b"  | on\n":
        pass
    assert line == b"  | on\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    end = time.monotonic() + WAIT_S
    while beige(house, "exec", "a", "--", "sh", "-c", "grep -l sleep /proc/[0-9]*/comm").returncode == 0:
        assert time.monotonic() < end, "the command outlived its turn"


def test_containers_are_listed_and_removed(house: Home) -> None:
    assert beige(house, "exec", "a", "--", "true").returncode == 0
    (info,) = json.loads(beige(house, "sandbox", "list", "--json").stdout)
    assert (info["agent"], info["state"], info["executor"]) == ("a", "running", "init")
    header, row = beige(house, "sandbox", "list").stdout.decode().splitlines()
    place = header.split().index("RUNTIME")
    assert row.split()[place] == info["runtime"] != ""
    assert beige(house, "sandbox", "rm", "a").stdout == b"removed the container of a\n"
    assert beige(house, "sandbox", "rm").returncode == 1


def test_a_restart_needs_no_variable_that_the_house_was_started_with(house: Home) -> None:
    assert beige(house, "config", "check").returncode == 0
    done = beige(house, "restart")
    assert (done.returncode, done.stdout) == (0, b"restarted everything\n"), done.stderr
    assert beige(house, "up").stdout.startswith(b"already up (")
    assert json.loads(beige(house, "status", "--json").stdout)["ok"] is True
    assert beige(house, "tools", "call", "a", "kv", "get", "k").stdout == b"-v\n"
