"""Threat: an agent that changes a launcher, the tool client, the executor or a tool's package, so that a
later command does something else, or goes around the gateway."""

from __future__ import annotations

import hashlib

import pytest

pytestmark = pytest.mark.docker

CHANGES = {
    "overwrite a launcher": "echo '#!/bin/sh' > /tools/bin/kv",
    "append to a launcher": "echo evil >> /tools/bin/kv",
    "remove a launcher": "rm -f /tools/bin/kv",
    "rename a launcher": "mv /tools/bin/kv /tools/bin/kv.old",
    "add a launcher": "cp /bin/true /tools/bin/git",
    "link a launcher": "ln -s /bin/true /tools/bin/git",
    "make a launcher writable": "chmod 777 /tools/bin/kv",
    "change a tool's documentation": "echo 'kv is safe' > /tools/packages/kv/README.md",
    "change a tool's manifest": "echo '{}' > /tools/packages/kv/plugin.json",
    "add a package": "mkdir /tools/packages/git",
    "replace the tool client": "rm -f /beige/tool-client && cp /bin/true /beige/tool-client",
    "replace the executor": "rm -f /beige/init && cp /bin/true /beige/init",
    "redirect the gateway's socket": "ln -sfn /tmp/mine.sock /beige/gateway.sock",
    "replace a program that launchers use": "rm -f /bin/sh && cp /bin/true /usr/bin/sh",
}
"""Changing commands; each succeeds in the careless container, and is undone there before the next."""
SAVE = (
    "rm -rf /var/saved; mkdir -p /var/saved; cp -a /tools/bin /tools/packages /beige /usr/bin/sh /var/saved/"
)
UNDO = (
    "rm -rf /tools/bin/* /tools/packages/* /beige/* && cp -a /var/saved/bin/. /tools/bin/ && "
    "cp -a /var/saved/packages/. /tools/packages/ && cp -a /var/saved/beige/. /beige/ && "
    "cp -a /var/saved/sh /usr/bin/sh"
)


def fingerprint(*directories):
    found = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = (path.lstat().st_mode, content)
    return found


INSIDE = (
    "find /beige /tools /usr/bin/sh -printf '%p %m %s %l\\n' | sort; "
    "find /tools /beige/init /beige/tool-client /usr/bin/sh -type f -exec sha256sum {} + | sort"
)


@pytest.mark.parametrize("command", CHANGES.values(), ids=CHANGES)
def test_nothing_a_later_command_relies_on_can_be_changed(gateway, careless, command):
    assert careless.sh(f"{SAVE} && {command}").code == 0, "control"
    careless.sh(UNDO)
    directories = gateway.home.launchers("travel"), gateway.home.packages("travel")
    before = fingerprint(*directories), gateway.travel.out(INSIDE)
    assert gateway.travel.sh(command).code != 0
    assert (fingerprint(*directories), gateway.travel.out(INSIDE)) == before
    assert gateway.travel.out("kv list; echo served").endswith("served")


SOCKETS = {
    "remove": "rm -f /run/beige/exec.sock /run/beige/gateway.sock",
    "replace by a link": "ln -sfn /tmp/x /run/beige/gateway.sock",
    "rename": "mv /run/beige/exec.sock /run/beige/old.sock",
    "add": "touch /run/beige/new",
    "bind": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/run/beige/new.sock\")'",
    "list": "ls /run/beige",
    "change its mode": "chmod 777 /run/beige",
}


@pytest.mark.parametrize("command", SOCKETS.values(), ids=SOCKETS)
def test_the_sockets_directory_can_not_be_changed(gateway, careless, command):
    setup = (
        "mkdir -p /run/beige && touch /run/beige/exec.sock /run/beige/gateway.sock && rm -f /run/beige/new*"
    )
    assert careless.sh(f"{setup} && {command}").code == 0, "control"
    directory = gateway.home.agent_sockets("travel")
    before = {path.name: path.stat().st_ino for path in directory.iterdir()}, directory.stat().st_mode
    assert gateway.travel.sh(command).code != 0
    assert (
        {path.name: path.stat().st_ino for path in directory.iterdir()},
        directory.stat().st_mode,
    ) == before


def test_a_program_that_shadows_a_tool_deceives_only_the_agent_itself(gateway):
    """Nothing of it runs on the host, and nothing is recorded as a call of the tool."""
    fake = "mkdir -p bin && printf '#!/bin/sh\\necho OK\\n' > bin/kv && chmod +x bin/kv"
    with gateway.recorded() as records:
        gateway.travel.out(fake)
        assert gateway.travel.out("PATH=/workspace/bin:$PATH kv set shadowed yes") == "OK"
    assert {r["type"] for r in records} == {"core_tool"}
    assert gateway.travel.sh("kv get shadowed").code == 1
    with gateway.recorded() as records:
        assert gateway.travel.out("kv set shadowed yes") == "OK"
    assert [r["tool"] for r in records if r["type"] == "tool"] == ["kv", "kv"], "control"
    gateway.travel.out("kv del shadowed; rm -r bin")


def test_a_tools_code_is_not_in_the_container(gateway):
    assert gateway.travel.out("ls /tools/packages /tools/packages/kv").split() == [
        "/tools/packages:", "kv", "/tools/packages/kv:", "README.md", "SKILL.md", "plugin.json",
    ]  # fmt: skip
    assert gateway.travel.sh("find / -xdev -name plugin.py 2>/dev/null").out == ""
    assert list((gateway.home.root / "plugins").rglob("plugin.py")), "control: the host has one"
