"""Threat: an agent that calls a tool which is not on its list.

`notes` writes down each call that reaches it, so a denial is known by its absence there too.
"""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.docker


def noted(gateway):
    calls = gateway.home.data / "plugins" / "notes" / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_a_listed_tool_can_be_called_control(gateway):
    with gateway.recorded() as records:
        assert gateway.other.tool("notes", "control")["success"]
    assert noted(gateway)[-1] == "other control"
    tools = [r for r in records if r["type"] == "tool"]
    assert [(r["agent"], r["tool"], r["decision"], r["phase"]) for r in tools] == [
        ("other", "notes", "allowed", "started"),
        ("other", "notes", "allowed", "finished"),
    ]


UNLISTED = {
    "another agent's tool": "notes",
    "no such tool": "git",
    "other capitals": "KV",
    "a space before": " kv",
    "a newline after": "kv\n",
    "a null byte": "kv\0",
    "a path": "../kv",
    "a wildcard": "*",
    "a look-alike": "\u043av",
    "a core tool": "exec",
    "a bus method": "sandbox.exec",
    "the way to a model": "llm.prompt",
    "the method itself": "tools.call",
    "an attribute": "__class__",
}


@pytest.mark.parametrize("name", UNLISTED.values(), ids=UNLISTED)
def test_an_unlisted_tool_is_denied_and_recorded(gateway, name):
    before = noted(gateway)
    with gateway.recorded() as records:
        answer = gateway.travel.tool(name, "x")
    assert (answer["success"], answer["exitCode"]) == (False, 1)
    assert answer["error"] == f"Permission denied: tool '{name}' not allowed for agent 'travel'"
    denials = [r for r in records if r["type"] == "tool"]
    assert [(r["agent"], r["tool"], r["decision"], r["phase"]) for r in denials] == [
        ("travel", name, "denied", "finished")
    ]
    assert noted(gateway) == before


@pytest.mark.parametrize("tool", ["kv", "notes"])
def test_an_agent_with_an_empty_list_can_call_nothing(gateway, tool):
    answer = gateway.idle.tool(tool, "list")
    assert answer["error"] == f"Permission denied: tool '{tool}' not allowed for agent 'idle'"
    assert gateway.idle.sh("ls /tools/bin /tools/packages").out.split() == ["/tools/bin:", "/tools/packages:"]
    ran = gateway.idle.sh(f"/beige/tool-client {tool} list")
    assert (ran.code, ran.out) == (1, "")


def test_a_launcher_of_ones_own_changes_nothing(gateway):
    """The launcher is a convenience, the decision is made elsewhere."""
    ran = gateway.travel.sh(
        "printf '#!/bin/sh\\nexec /beige/tool-client notes \"$@\"\\n' > n; sh n by launcher; echo $?"
    )
    assert "Permission denied" in ran.err and ran.out == "1\n"
    assert gateway.other.sh("/beige/tool-client notes by client").out == "noted\n", "control"
    assert noted(gateway)[-1] == "other by client"


TWICE = [("kv", "notes", True), ("notes", "kv", False)]


@pytest.mark.parametrize(("first", "last", "denied"), TWICE)
def test_policy_and_executor_read_the_same_tool_name(gateway, first, last, denied):
    """A JSON object that names its tool twice: whichever counts for one counts for the other."""
    line = json.dumps({"type": "tool_request", "tool": "FIRST", "args": ["list"]})
    line = line.replace('"FIRST"', f'"{first}", "tool": "{last}"')
    before = noted(gateway)
    with gateway.recorded() as records:
        answer = gateway.travel.speak(line)[0]
    assert answer["success"] != denied
    assert {r["tool"] for r in records if r["type"] == "tool"} == {last}
    assert noted(gateway) == before
