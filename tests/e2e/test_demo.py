"""`beige demo`, as a stranger runs it: twice in one home, in a fresh one, and interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beige.paths import Home
from beige.supervisor import leftovers
from services.sandbox.spec import home_digest

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_ready")]
COMMAND = [sys.executable, "-P", "-m", "beige.cli", "demo"]


def environ(home=None):
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "DOCKER_HOST") if name in os.environ}
    kept["PYTHONPATH"] = str(Path(__file__).parents[2])
    return kept | ({"BEIGE_HOME": str(home.root)} if home else {})


def containers(home):
    listed = subprocess.run(
        ["docker", "ps", "-a", "--filter", f"label=beige.home={home_digest(home)}", "--format", "{{.Names}}"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    return listed.stdout.split()


def sockets(home):
    return [path for path in home.run.rglob("*") if path.is_socket()] if home.run.exists() else []


def assert_nothing_is_left(home):
    assert leftovers.processes(home) == []
    assert containers(home) == []
    assert sockets(home) == []


def test_the_demo_shows_the_whole_job_and_a_second_run_does_too(home):
    for _ in range(2):
        done = subprocess.run(COMMAND, env=environ(home), capture_output=True, text=True, timeout=170)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "scripted model: a script file speaks here, not a language model" in done.stdout
        assert "20 of 20 kv calls are in the audit log, each started and finished" in done.stdout
        assert "denied: Permission denied: tool 'git' not allowed for agent 'travel'" in done.stdout
        assert len(re.findall(r"kv (?:set|get) trip:", done.stdout)) == 20
        assert re.search(r"The run took \d+\.\d s", done.stdout)
        assert_nothing_is_left(home)


def test_without_a_home_it_makes_one_and_names_it():
    done = subprocess.run(COMMAND, env=environ(), capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    home = Home(Path(re.search(r"^home: (.*)$", done.stdout, re.M)[1]))
    try:
        assert home.audit_log.exists()
        assert_nothing_is_left(home)
    finally:
        subprocess.run(["rm", "-rf", "--", str(home.root)], check=True)


@pytest.mark.parametrize("moment", ["services on the bus", "up after", "> exec"])
def test_ctrl_c_leaves_no_process_container_or_socket(home, moment):
    process = subprocess.Popen(
        COMMAND,
        env=environ(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        end = time.monotonic() + 100
        for line in process.stdout:
            if moment in line:
                os.killpg(process.pid, signal.SIGINT)
                break
            assert time.monotonic() < end
        process.stdout.read()
        assert process.wait(timeout=100) == 130
    assert_nothing_is_left(home)


def test_a_home_with_another_configuration_is_left_alone(home):
    home.config.write_text("// mine\n{}")
    done = subprocess.run(COMMAND, env=environ(home), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "unset BEIGE_HOME or name an empty directory" in done.stderr
    assert home.config.read_text() == "// mine\n{}"
