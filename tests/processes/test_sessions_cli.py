"""`beige sessions` and Ctrl-C in `beige prompt`, as their user meets them: the command line as a process."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from beige.supervisor.environment import minimal
from tests.processes.llm_stage import new_session_stage
from tests.simulator.replies import Tool, reply

PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
WAIT_S = 60.0


@pytest.fixture(scope="module")
def running():
    with new_session_stage() as stage:
        stage.start("broker", "policy", "audit", "sandbox", "llm", "llm/1")
        yield stage


@pytest.fixture
def stage(running):
    running.clean()
    return running


@contextlib.contextmanager
def start(home, *arguments, stdin=subprocess.DEVNULL):
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "beige.cli", *arguments],
        env=minimal(home, PLAIN),
        cwd="/",
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def beige(stage, *arguments, stdin=None):
    with start(stage.home, *arguments, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL) as process:
        out, err = process.communicate(stdin, timeout=WAIT_S)
    return process.returncode, out, err


def told(stage, *arguments, stdin=None):
    code, out, err = beige(stage, *arguments, stdin=stdin)
    assert code == 0, err
    return out


def test_the_life_of_a_session(stage):
    stage.simulator.answer(
        reply("I look.", Tool("exec", {"command": "printf 'a\\033[31mb\\n'"}, id="c1")), reply("Done."),
        reply("Hello again."), reply("And again."), reply("IN SHORT"),
    )  # fmt: skip
    told(stage, "prompt", "claude", "Look around.", "--session", "s1")
    out = told(stage, "sessions", "resume", "claude", stdin="Hello?\n\n  And?\n")
    assert out == "Hello again.\nAnd again.\n"

    listed = told(stage, "sessions", "list", "claude").splitlines()
    assert listed[0].split()[:2] == ["AGENT", "SESSION"]
    assert (
        listed[1].split()[:2] == ["claude", "s1"] and "answered" in listed[1] and "Look around." in listed[1]
    )
    assert [info["session"] for info in json.loads(told(stage, "sessions", "list", "--json"))] == ["s1"]

    shown = told(stage, "sessions", "show", "claude", "s1")
    for words in ("USER (", "Look around.", "I look.", "> exec printf", "  exec done", "And again."):
        assert words in shown
    assert "\x1b" not in shown, "a tool's escapes are shown, not obeyed"
    raw = told(stage, "sessions", "show", "claude", "s1", "--json")
    assert raw == (stage.home.sessions / "claude" / "s1.jsonl").read_text()

    forked = json.loads(
        told(stage, "sessions", "fork", "claude", "s1", "--prompts", "1", "--to", "s2", "--json")
    )
    assert (forked["session"], forked["prompts"]) == ("s2", 1)
    assert told(stage, "sessions", "compact", "claude", "s1") == "IN SHORT\n"
    assert "messages are summarised" in told(stage, "sessions", "show", "claude", "s1")
    assert told(stage, "sessions", "cancel", "claude", "s1") == "nothing was under way\n"
    assert told(stage, "sessions", "rm", "claude", "s1", "s2") == "removed s1\nremoved s2\n"
    assert list((stage.home.sessions / "claude").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "claude", "none"), "no such session: 'none'"),
        (("show", "claude", "../x"), "is not a session id"),
        (("rm", "claude", "none"), "no such session"),
        (("resume", "claude"), "claude has no session yet: `beige prompt claude ...` begins one"),
        (("list", "clause"), 'did you mean "claude"?'),
        (("fork", "claude", "none"), "no such session"),
        (("compact", "claude", "none"), "no such session"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_in_one_line(stage, arguments, said):
    code, out, err = beige(stage, "sessions", *arguments)
    assert (code, out) == (1, "") and err.startswith("beige: ") and said in err and err.count("\n") == 1


def wait_for_command(stage):
    """Until the executor runs the prompt's command."""
    stage.wait_for_effect("start echo on; sleep 60")


def test_ctrl_c_cancels_the_turn_and_kills_what_it_runs(stage):
    stage.simulator.answer(reply(Tool("exec", {"command": "echo on; sleep 60"})), reply("Back."))
    with start(stage.home, "prompt", "claude", "x", "--session", "s1") as process:
        wait_for_command(stage)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130 and "Traceback" not in err
    stage.wait_for_effect("killed echo on; sleep 60")
    assert told(stage, "prompt", "claude", "y", "--session", "s1") == "Back.\n"
    ends = [line["outcome"] for line in stage.session("claude", "s1") if line["type"] == "turn_end"]
    assert ends == ["cancelled", "answered"]


def test_cancel_from_another_terminal_ends_a_prompt_that_is_under_way(stage):
    stage.simulator.answer(reply(Tool("exec", {"command": "echo on; sleep 60"})), reply("Back."))
    with start(stage.home, "prompt", "claude", "x", "--session", "s1") as process:
        wait_for_command(stage)
        assert told(stage, "sessions", "cancel", "claude", "s1") == "cancelled 1\n"
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1 and err.endswith("an operator cancelled the session's prompts\n")
    stage.wait_for_effect("killed echo on; sleep 60")
    assert told(stage, "sessions", "resume", "claude", "s1", stdin="y\n") == "Back.\n"


def test_on_a_terminal_ctrl_c_ends_the_turn_and_the_conversation_goes_on(stage):
    stage.simulator.answer(
        reply("One."), reply(Tool("exec", {"command": "echo on; sleep 60"})), reply("Back.")
    )
    told(stage, "prompt", "claude", "x", "--session", "s1")
    master, slave = pty.openpty()
    try:
        with start(stage.home, "sessions", "resume", "claude", stdin=slave) as process:
            os.write(master, b"go\n")
            wait_for_command(stage)
            process.send_signal(signal.SIGINT)
            stage.wait_for_effect("killed echo on; sleep 60")
            os.write(master, b"and now?\n\x04")
            out, err = process.communicate(timeout=WAIT_S)
    finally:
        os.close(master)
        os.close(slave)
    assert process.returncode == 0, err
    assert out.endswith("Back.\n") and "[cancelled]" in err


def test_without_services_the_message_says_how_to_start_them(stage, home):
    home.config.write_text(stage.home.config.read_text())
    with start(home, "sessions", "list") as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (1, "")
    assert err == f"beige: beige is not running for {home.root}: start it with `beige up`\n"
