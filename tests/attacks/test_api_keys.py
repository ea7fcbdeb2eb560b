"""Threat: an agent that looks for API keys, in its own container or through whatever is said about it.

A provider key and a plugin's secret are planted as the operator would give them: in environment
variables that the config refers to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from beige.messages.llm import PromptRequest
from beige.supervisor import leftovers
from beige.supervisor.control import Control

pytestmark = pytest.mark.docker

PATTERN = "'(sk|plugin)-[c]anary-[0-9a-f]{24}'"
"""Does not match itself, where it stands in a command line."""
FILES = "/workspace /home /tmp /run /etc /tools /beige /usr/share /var /root /opt /mnt /srv /dev/shm"
SEARCHES = {
    "environment": f"env | grep -cE {PATTERN}",
    "environments of other processes": f"cat /proc/[0-9]*/environ 2>/dev/null | grep -caE {PATTERN}",
    "command lines": f"cat /proc/[0-9]*/cmdline | grep -caE {PATTERN}",
    "files": f"rg -uuu --no-messages -l {PATTERN} {FILES} | wc -l",
}


@pytest.mark.parametrize("command", SEARCHES.values(), ids=SEARCHES)
def test_no_key_is_in_the_container(gateway, careless, command):
    assert gateway.travel.sh(command).out == "0\n"
    plant = (
        f"echo {gateway.provider_key} > /tmp/key; sh -c 'sleep 1; true' {gateway.plugin_secret} & sleep 0.2; "
    )
    assert int(careless.sh(plant + command).out) > 0, "control"


def test_no_key_is_in_the_containers_definition(gateway, careless):
    assert gateway.provider_key in json.dumps(careless.inspect()), "control"
    for agent in ("travel", "other", "idle"):
        found = json.dumps(gateway.inspect(agent))
        assert gateway.provider_key not in found
        assert gateway.plugin_secret not in found


def test_the_environment_of_a_command_is_these_names_and_no_others(gateway):
    names = set(gateway.travel.out("env | cut -d= -f1").split())
    ours = {"PATH", "HOME", "LANG", "DENO_DIR", "DENO_NO_UPDATE_CHECK", "BEIGE_AGENT", "BEIGE_CALL_TOKEN"}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == ours


def holders(gateway, text):
    """Programs of the house whose environment, or whose children's, holds `text`."""
    names = {state.pid: state.program for state in Control(gateway.home).processes()}
    found = set()
    for pid in leftovers.processes(gateway.home):
        if text.encode() in Path(f"/proc/{pid}/environ").read_bytes():
            found.add(names.get(pid, f"pid {pid}"))
    return found


def test_only_llm_has_the_provider_key_and_only_tools_the_plugins_secret(gateway):
    """The control is the other line: each search finds its one process."""
    assert holders(gateway, gateway.provider_key) == {"llm"}
    assert holders(gateway, gateway.plugin_secret) == {"tools"}


def test_no_key_is_in_any_command_line_on_the_host(gateway):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        ours = str(gateway.home.root).encode() in line
        assert not (ours and gateway.provider_key.encode() in line), path


def files_with(root, text):
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    }


def test_keys_are_in_no_log_session_or_record(gateway):
    """After a turn of a model, with commands that print all they find."""
    ended = gateway.call("llm.prompt", PromptRequest("Look."), agent="travel", session="keys", ttl_s=60)
    assert ended.stop_reason and list((gateway.home.sessions / "travel").glob("keys*"))
    root = gateway.home.root
    run = gateway.home.run.relative_to(root) if gateway.home.run.is_relative_to(root) else None
    assert files_with(root, gateway.provider_key) <= {f"{run}/env/llm.json"}
    assert files_with(root, gateway.plugin_secret) <= {f"{run}/env/tools.json"}
    assert files_with(root, "env; kv list"), "control: what the turn did is in these files"


def test_the_files_that_hold_keys_while_the_house_runs_are_private(gateway):
    for path in (gateway.home.run / "env").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
        assert (gateway.provider_key in path.read_text()) == (path.name == "llm.json")
        assert (gateway.plugin_secret in path.read_text()) == (path.name == "tools.json")


class Tap:
    """`beige tap` with bodies, from when it listens until `stop`."""

    def __init__(self, home):
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "beige.cli", "tap", "--json", "--bodies"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
            env={**os.environ, "BEIGE_HOME": str(home.root), "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        assert self._process.stderr.readline() == "listening\n"

    def until(self, mark):
        """All lines up to the one that holds `mark`."""
        lines = []
        while not lines or mark not in lines[-1]:
            lines.append(self._process.stdout.readline())
            assert lines[-1], "the tap ended"
        return lines

    def stop(self):
        self._process.kill()
        self._process.communicate()


def test_keys_and_call_tokens_do_not_pass_the_tap(gateway):
    """An agent that says a key aloud, as a tool's argument, in a command and in its output."""
    key = gateway.provider_key
    tap = Tap(gateway.home)
    try:
        with gateway.recorded() as records:
            token = gateway.travel.out(
                f"kv set said {key} >/dev/null; echo {key} >&2; echo $BEIGE_CALL_TOKEN"
            )
        gateway.travel.run("true", session="the-end-of-the-attack")
        seen = "".join(tap.until("the-end-of-the-attack"))
    finally:
        tap.stop()
    assert len(token) >= 22
    assert '"tools.call"' in seen or ("tools" in seen and "call" in seen), "control: the call was seen"
    assert any(key in argument for r in records for argument in r["args"]), "control: it was said"
    assert key not in seen
    assert token not in seen
    gateway.travel.out("kv del said")
