"""What an agent can do: each line of the security model that allows something, with the limit beside it
that shows that the test could fail."""

from __future__ import annotations

import pytest

from beige.errors import BeigeError, NotFound
from beige.messages.base import AgentRef
from beige.messages.llm import PromptRequest
from beige.messages.sandbox import PatchRequest, ReadRequest, WriteRequest

pytestmark = pytest.mark.docker


def test_read_and_write_files_in_the_workspace(gateway):
    call, path = gateway.call, "/workspace/notes/plan.txt"
    assert call("sandbox.write", WriteRequest(path, b"to Paris\n"), agent="travel").created
    assert call("sandbox.read", ReadRequest(path), agent="travel").content == b"to Paris\n"
    call("sandbox.patch", PatchRequest(path, "Paris", "Lyon"), agent="travel")
    assert (
        gateway.travel.out("cat notes/plan.txt; mv notes/plan.txt p; rm p; ls notes | wc -l") == "to Lyon\n0"
    )
    with pytest.raises(BeigeError):
        call("sandbox.write", WriteRequest("/usr/share/plan.txt", b"x"), agent="travel")


LANGUAGES = {
    "sh": "sh -c 'echo $((6 * 7))'",
    "bash": "bash -c 'a=(6 7); echo $((a[0] * a[1]))'",
    "python": "python3 -c 'print(6 * 7)'",
    "typescript": "echo 'const n: number = 6; console.log(n * 7)' > t.ts && deno run -q t.ts",
    "javascript": "deno eval 'console.log(6 * 7)'",
    "awk": "awk 'BEGIN {print 6 * 7}'",
    "a program in the workspace": "printf '#!/bin/sh\\necho 42\\n' > p && chmod +x p && ./p",
}


@pytest.mark.parametrize("command", LANGUAGES.values(), ids=LANGUAGES)
def test_execute_code_in_any_language(gateway, command):
    assert gateway.travel.out(command) == "42"


def test_a_program_that_fails_says_so_control(gateway):
    assert gateway.travel.sh("python3 -c 'print(6 *'").code == 1
    with pytest.raises(NotFound):
        gateway.travel.run("ruby", "-e", "puts 42")


def test_call_allowed_tools_by_their_name(gateway):
    assert gateway.travel.out("kv set city Paris && kv get city && kv del city") == "OK\nParis\n1"
    assert gateway.travel.out("command -v kv") == "/tools/bin/kv"
    assert gateway.idle.sh("kv list").code == 127, "control: an agent without the tool has no such command"


def test_read_tool_documentation(gateway):
    for name in ("README.md", "SKILL.md", "plugin.json"):
        text = (gateway.home.packages("travel") / "kv" / name).read_text()
        assert gateway.travel.sh(f"cat /tools/packages/kv/{name}").out == text
    assert gateway.travel.sh("cat /tools/packages/notes/plugin.json").code == 1, "control: not its tool"


def test_data_persists_across_sessions_and_a_new_container(gateway):
    for session, command in (
        ("monday", "echo kept > diary; echo lost > /tmp/diary; kv set diary kept"),
        ("tuesday", "cat diary /tmp/diary"),
    ):
        gateway.travel.out(command, session=session)
    old = gateway.inspect("travel")["Id"]
    gateway.call("sandbox.remove", AgentRef(), agent="travel", ttl_s=60)
    ran = gateway.travel.sh("cat diary; kv get diary; cat /tmp/diary", session="wednesday")
    assert ran.out == "kept\nkept\n"
    assert ran.code == 1, "control: what was not in the workspace is gone"
    assert gateway.inspect("travel")["Id"] != old


def test_a_model_does_all_this_through_the_same_path(gateway):
    """Its tool calls are recorded as its agent's, with its session."""
    with gateway.recorded() as records:
        gateway.call("llm.prompt", PromptRequest("Look."), agent="travel", session="model", ttl_s=60)
    assert {(r["agent"], r["session"]) for r in records} == {("travel", "model")}
    assert {("llm", "exec"), ("bridge", "kv")} <= {(r["src"].split("/")[0], r["tool"]) for r in records}


# --- lines that the sealed profile answers with no (profile `open` is a later issue) -------------------


def test_no_internet_and_no_packages_in_the_sealed_profile(gateway):
    """test_network.py and test_privileges.py prove both; here is what an agent sees."""
    assert gateway.travel.sh("curl -sS http://127.0.0.1:1/").code == 7
    assert gateway.travel.sh("apt-get update").code == 127
    assert gateway.travel.sh("pip install x").code == 127
    assert gateway.travel.sh("python3 -m pip --version").code == 1
    assert gateway.travel.sh("python3 -m ensurepip").code == 1


def test_neither_root_nor_the_internet_comes_without_being_written_down(gateway, tmp_path):
    """Never silently open: root inside only in the profile open, a way out only with a list."""
    from beige.config import load
    from beige.errors import ConfigError
    from beige.paths import Home

    text = gateway.home.config.read_text()
    home = Home(tmp_path)
    (tmp_path / "plugins").symlink_to(gateway.home.root / "plugins")
    (tmp_path / "script.json5").write_text("[]")
    home.config.write_text(text)
    assert load(home).agents["travel"].sandbox.egress is None
    for wrong in ("root: true,", "egress: {},", 'profile: "Open",'):
        home.config.write_text(text.replace("sandbox: {", f"sandbox: {{ {wrong}", 1))
        with pytest.raises(ConfigError, match=r"agents\.travel\.sandbox"):
            load(home)
