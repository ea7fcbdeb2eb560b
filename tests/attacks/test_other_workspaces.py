"""Threat: an agent that reads or disturbs another agent: its files, processes, memory, tools' data.

The other agent's own view is the control of each test.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.docker

SECRET = "the-other-agents-[s]ecret"
EVERYWHERE = "/ --glob '!/proc/**' --glob '!/sys/**' --glob '!/usr/**'"
OWNERS = {
    "by content": f"rg -uuu --no-messages '{SECRET}' {EVERYWHERE}; true",
    "by name": "find / -name 'secret-of-oth[e]r*' 2>/dev/null; true",
}
OUTSIDERS = {
    "by its path on the host": "cat {path} 2>/dev/null; true",
    "beside ones own workspace": "cat {workspace}/../../other/workspace/secret-of-other 2>/dev/null; true",
    "behind PID 1's root": "cat /proc/1/root{path} 2>/dev/null; true",
}


@pytest.fixture(scope="module")
def planted(gateway):
    gateway.other.out("echo the-other-agents-secret > secret-of-other; chmod 666 secret-of-other")
    yield gateway.home.workspace("other") / "secret-of-other"
    gateway.other.out("rm secret-of-other")


@pytest.mark.parametrize("command", OWNERS.values(), ids=OWNERS)
def test_another_agents_file_can_not_be_found(gateway, planted, command):
    assert "secret" in gateway.other.out(command), "control"
    assert gateway.travel.out(command) == ""


@pytest.mark.parametrize("command", OUTSIDERS.values(), ids=OUTSIDERS)
def test_another_agents_file_can_not_be_reached(gateway, careless, planted, command):
    outside = command.format(path=planted, workspace=gateway.home.workspace("travel"))
    assert "secret" in careless.sh(outside).out, "control"
    assert gateway.travel.out(command.format(path=planted, workspace="/workspace")) == ""


def test_workspaces_are_two_directories(gateway):
    gateway.travel.out("echo travel > same-name")
    gateway.other.out("echo other > same-name")
    assert gateway.travel.out("cat same-name") == "travel"
    assert gateway.other.out("cat same-name") == "other"
    assert (gateway.home.workspace("travel") / "same-name").read_text() == "travel\n"


def test_another_agents_processes_are_not_visible(gateway):
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 86[3]97'"
    gateway.other.out("nohup sleep 86397 >/dev/null 2>&1 &")
    assert gateway.other.sh(look).out == "1\n", "control"
    assert gateway.travel.sh(look).out == "0\n"
    gateway.travel.sh("pkill -KILL sleep; kill -KILL -1")
    assert gateway.other.sh(look).out == "1\n"
    gateway.other.out("pkill sleep")


LEAVE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(0x8639, 4096, 0o1666) >= 0, libc.msgget(0x8639, 0o1666) >= 0)
open("/dev/shm/left", "w").write("x")
"""
FIND = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(0x8639, 4096, 0) >= 0, libc.msgget(0x8639, 0) >= 0, os.path.exists("/dev/shm/left"))
"""


def test_shared_memory_and_queues_are_not_shared(gateway):
    assert gateway.other.python(LEAVE.replace("0o1666", "0o1000 | 0o666")).out == "True True\n"
    assert gateway.other.python(FIND).out == "True True True\n", "control"
    assert gateway.travel.python(FIND).out == "False False False\n"


def test_a_tools_data_is_kept_apart(gateway):
    gateway.other.out("kv set private yes")
    assert gateway.other.out("kv get private") == "yes", "control"
    assert gateway.travel.sh("kv get private").code == 1
    assert "private" not in gateway.travel.out("kv list").split()
    gateway.travel.out("kv set private mine; kv del private")
    assert gateway.other.out("kv get private; kv del private") == "yes\n1"


def test_documentation_of_other_agents_tools_is_not_mounted(gateway):
    assert gateway.other.out("ls /tools/packages").split() == ["kv", "notes"], "control"
    assert gateway.travel.out("ls /tools/packages /tools/bin").split() == [
        "/tools/bin:", "kv", "/tools/packages:", "kv",
    ]  # fmt: skip


FORK = """
import os, signal
made = []
try:
    while len(made) < 300:
        made.append(os.posix_spawn("/usr/bin/sleep", ["sleep", "60"], {}))
except OSError:
    pass
print(len(made))
for pid in made:
    os.kill(pid, signal.SIGKILL)
"""


def test_processes_run_out_for_the_agent_that_uses_them_up(gateway, careless):
    assert careless.python(FORK).out == "300\n", "control"
    assert int(gateway.travel.python(FORK).out) < 128
    assert gateway.other.out("for i in $(seq 40); do sleep 1 & done; jobs -p | wc -l; pkill sleep") == "40"
