"""`beige tui` in a real terminal (tmux), with a real container behind it: typed at, watched, cut off."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import uuid

import pytest

from beige.supervisor.environment import minimal
from beige.testing import House, short_home
from services.sandbox.spec import container_name

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_ready")]
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
DEADLINE_S = 90
PROGRAMS = ("broker", "policy", "audit", "sandbox", "llm", "gateway")
CLIPBOARD = r"printf '\033]52;c;ZXZpbA==\007\n'"
WAITING = (
    f"{CLIPBOARD}; for n in 1 2 3; do echo line-$n; done; until [ -e go ]; do sleep 0.1; done; echo released"
)
SCRIPT = f"""[
  {{ say: "I write a program:\\n\\n```python\\nprint(6 * 7)\\n```\\n", tools: [
    {{ tool: "write", args: {{ path: "six.py", content: "print(6 * 7)" }} }},
    {{ tool: "exec", args: {{ command: "python3 six.py" }} }} ] }},
  {{ say: "It prints **{{{{last.stdout}}}}**." }},
  {{ say: "Now I wait.", tool: "exec", args: {{ command: {json.dumps(WAITING)} }} }},
  {{ say: "It was {{{{last.stdout}}}}." }},
  {{ say: "You said: {{{{prompt}}}}" }},
]"""


class Terminal:
    """A tmux server of our own with one pane; ended with it."""

    def __init__(self, home, name):
        self._home, self._name = home, name
        self.raw = home.root / f"{name}.raw"
        """Every byte the client wrote to its terminal."""

    def tmux(self, *arguments):
        command = ["tmux", "-L", self._name, "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=self._environ())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _environ(self, **more):
        return minimal(self._home, PLAIN) | {"TMUX_TMPDIR": str(self._home.root), "LANG": "C.UTF-8"} | more

    def run(self, *arguments, size=(100, 32), **environ):
        """`beige ...` in it; when it ends, its exit code is to be seen."""
        words = [f"{name}={value}" for name, value in environ.items()]
        command = shlex.join(["env", *words, sys.executable, "-P", "-m", "beige.cli", *arguments])
        width, height = map(str, size)
        # The pipe first: what the client says before it is there would be lost.
        line = f"read go; {command}; echo left with $?; read end"
        self.tmux("new-session", "-d", "-x", width, "-y", height, line)
        self.tmux("pipe-pane", "-o", f"cat > {shlex.quote(str(self.raw))}")
        self.tmux("send-keys", "Enter")

    @property
    def screen(self):
        return self.tmux("capture-pane", "-p")

    def sees(self, text, times=1):
        end = time.monotonic() + DEADLINE_S
        while " ".join(self.screen.split()).count(text) < times:
            assert time.monotonic() < end, f"not within {DEADLINE_S} s: {text}; there is:\n{self.screen}"
            time.sleep(0.1)
        return self.screen

    def says(self, text):
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def close(self):
        with contextlib.suppress(AssertionError):
            self.tmux("kill-server")


def docker(*arguments):
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def house():
    with short_home() as home:
        home.config.write_text(json.dumps({
            "llm": {"providers": {"script": {"api": "scripted", "script": "script.json5"}}},
            "agents": {"travel": {"model": {"provider": "script", "model": "walk"}, "tools": [],
                                  "sandbox": {"image": "beige-sandbox:latest"}}},
            "gateway": {"port": 0},
        }))  # fmt: skip
        (home.root / "script.json5").write_text(SCRIPT)
        with House(home) as house:
            for name in PROGRAMS:
                house.start(name)
            try:
                yield house
            finally:
                docker("rm", "-f", container_name(home, "travel"))


@pytest.fixture
def terminal(house):
    """tmux is a need of the tests (scripts/bootstrap.sh); where it can't be installed this is skipped."""
    try:
        subprocess.run(["tmux", "-V"], capture_output=True, check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("tmux is not installed")
    terminal = Terminal(house.home, f"t{uuid.uuid4().hex[:12]}")
    try:
        yield terminal
    finally:
        terminal.close()


def test_a_session_from_the_first_word_through_cancel_and_restart_to_leaving(house, terminal):
    terminal.run("tui", "travel")
    terminal.sees("ready · travel")
    terminal.says("/verbose on")
    terminal.sees("verbose is on")

    terminal.says("Write a program.")
    shown = terminal.sees("It prints 42.")
    assert "exec python3 six.py — exit code 0" in shown
    assert "print(6 * 7)" in shown and "```" not in shown

    terminal.says("Now wait.")
    shown = terminal.sees("line-3")
    assert "until" in running_in(house.home)
    assert "running" in shown and "working · travel" in shown and "released" not in shown.split("line-1")[1]
    terminal.tmux("send-keys", "Escape")
    terminal.sees("cancelled")
    terminal.sees("ready · travel")
    end = time.monotonic() + DEADLINE_S
    while "until" in running_in(house.home):
        assert time.monotonic() < end, "the command runs on"

    house.kill("gateway")
    terminal.sees("the gateway is away")
    house.start("gateway")
    terminal.sees("the gateway is there again")

    terminal.tmux("set-buffer", "two\nlines")
    terminal.tmux("paste-buffer", "-p")
    terminal.sees("two lines")
    terminal.tmux("send-keys", "Enter")
    terminal.sees("It was .")

    terminal.tmux("send-keys", "C-c")
    terminal.sees("Ctrl-C again leaves")
    terminal.tmux("send-keys", "C-c")
    terminal.sees("left with 0")
    raw = terminal.raw.read_bytes()
    # The command's output would have set the operator's clipboard.
    assert colours(raw)
    assert b"]52;c;ZXZpbA==" in raw and b"\x1b]52" not in raw


def running_in(home):
    """The commands of the agent's container."""
    found = docker("top", container_name(home, "travel"), "-eo", "pid,args")
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_gateway_that_is_killed_in_the_middle_of_a_turn_costs_only_that_turn(house, terminal):
    terminal.run("tui", "travel")
    terminal.sees("ready · travel")
    terminal.says("first")
    terminal.sees("It prints 42.")
    terminal.says("wait")
    terminal.sees("Now I wait.")
    terminal.sees("working · travel")
    house.kill("gateway")
    terminal.sees("connection lost")
    terminal.sees("reconnecting · travel")
    house.start("gateway")
    terminal.sees("the gateway was restarted")
    terminal.sees("It prints 42.")
    terminal.sees("ready · travel")
    terminal.says("/quit")
    terminal.sees("left with 0")


def test_80_columns_without_colours_and_a_terminal_that_shrinks(house, terminal):
    terminal.run("tui", "travel", size=(80, 24), NO_COLOR="1")
    terminal.sees("ready · travel")
    terminal.says("go")
    terminal.sees("It prints 42.")
    terminal.tmux("resize-window", "-x", "40", "-y", "12")
    terminal.sees("It prints 42.")
    terminal.sees("ready · travel")
    terminal.says("/quit")
    terminal.sees("left with 0")
    assert colours(terminal.raw.read_bytes()) == set()


def colours(raw):
    """The colours that were set, greys aside."""
    found = set()
    for code in re.findall(rb"\x1b\[([0-9;]+)m", raw):
        numbers = [int(number or 0) for number in code.split(b";")]
        for at, number in enumerate(numbers):
            if number in (38, 48):
                rest = tuple(numbers[at + 1 : at + 5])
                if not grey(rest):
                    found.add(rest)
                break
            if number in range(31, 37) or number in range(91, 97):
                found.add(number)
    return found


def grey(colour):
    """Of `5;n` (a palette of 256) or `2;r;g;b`."""
    if colour[0] == 2:
        return len(set(colour[1:4])) == 1
    cube = colour[1] - 16
    return (
        colour[1] in (0, 7, 8, 15) or cube >= 216 or (cube >= 0 and cube // 36 == cube // 6 % 6 == cube % 6)
    )


def test_without_a_terminal_it_says_what_to_use_instead(house):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "beige.cli", "tui", "travel"], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, env=minimal(house.home, PLAIN),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a terminal" in done.stderr and "beige prompt" in done.stderr
