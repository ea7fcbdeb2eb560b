"""`beige sandbox shell`, `logs`, `stop`, and `exec -i`: the operator's commands on real containers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from beige.messages.base import Empty
from beige.supervisor.environment import minimal

pytestmark = pytest.mark.docker
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ}


def command(house, *arguments):
    return [sys.executable, "-P", "-m", "beige.cli", *arguments], minimal(house.home, PLAIN)


def beige(house, *arguments, stdin=b""):
    argv, env = command(house, *arguments)
    return subprocess.run(argv, env=env, input=stdin, capture_output=True, timeout=60, check=False)


def records(house):
    return [json.loads(line) for line in house.home.audit_log.read_text().splitlines()]


def test_stop_ends_the_container_and_keeps_its_log_and_the_workspace(house, tools):
    async def start(bus):
        await tools.out(bus, "echo kept > file; nohup setsid sleep 8811 >/dev/null 2>&1 &")

    house.operate(start)
    done = beige(house, "sandbox", "stop", "travel")
    assert (done.returncode, done.stdout) == (0, b"travel: exited\n"), done.stderr
    assert tools.docker("inspect", "--format", "{{.State.Running}}", house.container("travel")) == "false"
    again = beige(house, "sandbox", "stop", "travel")
    assert (again.returncode, again.stdout) == (0, b"travel: exited\n"), "idempotent"
    state = json.loads(beige(house, "sandbox", "logs", "travel", "--json").stdout)
    assert (state["info"]["state"], state["exit_code"], state["out_of_memory"]) == ("exited", 137, False)
    assert state["finished"]

    async def go_on(bus):
        assert await tools.out(bus, "cat file; pgrep -f '^sleep 8811' || echo none") == "kept\nnone\n"

    house.operate(go_on)
    state = json.loads(beige(house, "sandbox", "logs", "travel", "--json").stdout)
    assert (state["info"]["state"], state["info"]["executor"]) == ("running", "init")


def test_stop_and_logs_of_what_is_not_there(house):
    done = beige(house, "sandbox", "stop", "nobody")
    assert done.returncode == 1 and b"no such agent" in done.stderr
    assert beige(house, "sandbox", "stop").returncode == 1
    beige(house, "sandbox", "rm", "other")
    done = beige(house, "sandbox", "stop", "other")
    assert (done.returncode, done.stdout) == (0, b"other: absent\n")
    done = beige(house, "sandbox", "logs", "other")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"no container (absent)" in done.stderr


def test_logs_show_what_an_images_first_process_prints_safely(make_house, foreign_image, tools):
    """`sleep` prints nothing; an agent's process that gets at its descriptors must not drive a terminal."""
    with make_house({"travel": tools.agent(foreign_image)}) as house:

        async def start(bus):
            await tools.out(bus, "true")
            await tools.bash(bus, "printf '\\033]0;owned\\007\\n' > /proc/1/fd/1")

        house.operate(start)
        seen = on_a_terminal(house, "sandbox", "logs", "travel")
        assert b"\x1b]0;" not in seen
        assert b"docker-exec" in seen


def on_a_terminal(house, *arguments):
    """All that a command writes to its terminal."""
    with terminal(house, *arguments) as shell:
        return shell.rest()


class terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, house, *arguments):
        argv, env = command(house, *arguments)
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            argv, env=env | {"TERM": "xterm"}, start_new_session=True,
            stdin=slave, stdout=slave, stderr=slave,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def send(self, text):
        os.write(self._master, text.encode())

    def _more(self, deadline):
        ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"nothing more came after {self.seen!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.seen += data
        return bool(data)

    def until(self, text):
        deadline = time.monotonic() + 60
        while text.encode() not in self.seen:
            assert self._more(deadline), self.seen
        before, _, self.seen = self.seen.partition(text.encode())
        return before

    def rest(self):
        deadline = time.monotonic() + 60
        while self._more(deadline):
            pass
        return self.seen

    def wait(self):
        return self._process.wait(timeout=60)


def test_a_shell_from_a_pipe_is_one_governed_exec_per_line(house):
    lines = b"cd /tmp\npwd; echo err >&2\n\nfalse\nexit 7\n"
    done = beige(house, "sandbox", "shell", "travel", stdin=lines)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"/tmp\n", b"err\n")
    said = [record["args"][-1] for record in records(house) if record["phase"] == "started"]
    assert said[-4:] == ["cd /tmp", "pwd; echo err >&2", "false", "exit 7"]
    assert {r["decision"] for r in records(house)} == {"allowed"}


def test_a_shell_goes_on_after_errors_and_cut_output(house):
    lines = (
        b"cd /tmp; yes | head -c 3000000\npwd\ncd /nope\nrm -rf /tmp/gone; mkdir /tmp/gone; cd /tmp/gone\n"
    )
    lines += b"rmdir /tmp/gone\npwd\n"
    done = beige(house, "sandbox", "shell", "travel", stdin=lines)
    assert b"bytes left out]\n/tmp\n" in done.stdout
    assert b"no such directory: /tmp/gone" in done.stderr
    assert done.returncode == 1


def test_a_shell_on_a_terminal(house):
    with terminal(house, "sandbox", "shell", "travel") as shell:
        shell.until("travel:/workspace$ ")
        shell.send("mkdir -p $'we\\e]0;ird' && cd $'we\\e]0;ird' && printf 'x\\033[2Jy\\n'\n")
        shell.until("x\\x1b[2Jy")
        seen = shell.until("$ ")
        assert b"/workspace/we\\x1b]0;ird" in seen
        assert b"\x1b]0;ird" not in seen
        shell.send("echo go; sleep 8812\n")
        shell.until("go\r\n")
        shell.send("\x03")
        shell.until("$ ")
        shell.send("pgrep -f '^sleep 8812' || echo gone\n")
        shell.until("gone\r\n")
        shell.until("$ ")
        shell.send("(exit 5)\n")
        shell.until("$ ")
        shell.send("\x04")
        shell.rest()
        assert shell.wait() == 5


def test_standard_input_is_streamed_whatever_its_size(house):
    data = bytes(range(256)) * 12_000
    done = beige(house, "exec", "travel", "-i", "--", "sha256sum", stdin=data)
    assert (done.returncode, done.stdout.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())
    assert beige(house, "exec", "travel", "-i", "--", "cat", stdin=b"").stdout == b""
    assert beige(house, "exec", "travel", "-i", "--", "head", "-c3", stdin=data).stdout == data[:3]


def test_a_command_that_does_not_read_holds_its_input_back(house, tools):
    """The writer is stopped by its own pipe, long before 64 MB are anywhere."""
    argv, env = command(house, "exec", "travel", "-i", "--", "sh", "-c", "echo up; sleep 8813")
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        os.set_blocking(process.stdin.fileno(), False)
        sent = 0
        # Until nothing is taken for a second: what is in flight then is bounded.
        while select.select([], [process.stdin], [], 1.0)[1]:
            sent += os.write(process.stdin.fileno(), b"x" * 4096)
            assert sent < 8 * 1024 * 1024
        assert sent > 0
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130

    async def gone(bus):
        assert (await tools.bash(bus, "pgrep -f '^sleep 8813'")).exit_code == 1

    house.operate(gone)


def test_the_commands_end_does_not_wait_for_its_input(house):
    argv, env = command(house, "exec", "travel", "-i", "--", "echo", "done")
    reading, writing = os.pipe()
    try:
        done = subprocess.run(argv, env=env, stdin=reading, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"done\n", b"")
    finally:
        os.close(reading)
        os.close(writing)


def test_autostart_makes_the_container_before_it_is_asked_for(make_house, sandbox_image, tools):
    agents = {"early": tools.agent(sandbox_image, autostart=True), "late": tools.agent(sandbox_image)}
    with make_house(agents) as house:

        async def watch(bus):
            async with asyncio.timeout(60):
                while True:
                    listed = (await bus.call("sandbox.list", Empty())).sandboxes
                    if [(one.agent, one.executor) for one in listed] == [("early", "init"), ("late", "")]:
                        return
                    await asyncio.sleep(0.05)

        house.operate(watch)
        assert house.containers() == [house.container("early")]


def test_what_a_crashed_run_left_dead_is_collected(make_house, sandbox_image, tools):
    with make_house({name: tools.agent(sandbox_image) for name in ("a", "b")}) as house:

        async def start(bus):
            for name in ("a", "b"):
                await tools.out(bus, "true", name)

        house.operate(start)
        house.kill("sandbox")
        tools.docker("kill", house.container("a"))
        label = tools.docker(
            "inspect", "--format", '{{index .Config.Labels "beige.home"}}', house.container("b")
        )
        tools.docker("create", f"--label=beige.home={label}", "--network=none", sandbox_image)
        tools.docker(
            "create",
            "--label=beige.home=another",
            "--network=none",
            "--name=beige-drill-other",
            sandbox_image,
        )
        try:
            house.start("sandbox")
            end = time.monotonic() + 60
            while house.containers() != [house.container("b")]:
                assert time.monotonic() < end, house.containers()
                time.sleep(0.05)
            assert tools.docker("inspect", "--format", "{{.State.Status}}", "beige-drill-other") == "created"
        finally:
            tools.docker("rm", "--force", "beige-drill-other")
