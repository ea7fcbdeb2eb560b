"""Threat: an agent that claims to be another one.

Who speaks is told by the socket alone. Every claim a request can make is tried, at the raw socket.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.docker

CLAIMS = {
    "agent": {"agent": "other"},
    "agent as an object": {"agent": {"name": "other", "id": 1}},
    "agent as a list": {"agent": ["other"]},
    "session": {"session": "s-other"},
    "channel": {"channel": "telegram"},
    "session context": {"sessionContext": {"agentName": "other", "sessionKey": "s-other", "channel": "cli"}},
    "everything": {
        "agent": "other", "session": "s-other", "channel": "cli", "id": "other",
        "sessionContext": {"agent": "other", "agentName": "other"},
    },
}  # fmt: skip


def tool_records(records):
    return [r for r in records if r["type"] == "tool"]


@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS)
def test_a_claimed_identity_does_not_open_another_agents_tools(gateway, claims):
    with gateway.recorded() as records:
        answer = gateway.travel.tool("notes", "as other", claims=claims)
    assert answer["error"] == "Permission denied: tool 'notes' not allowed for agent 'travel'"
    (denial,) = tool_records(records)
    assert (denial["agent"], denial["decision"]) == ("travel", "denied")
    assert not {"session", "channel"} & set(denial), "neither is known without a token"


def test_the_agent_itself_is_let_in_control(gateway):
    assert gateway.other.tool("notes", "as myself")["success"]
    assert gateway.other.tool("notes", "as myself", claims={"agent": "travel"})["success"]


@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS)
def test_an_allowed_call_is_recorded_and_served_as_the_sockets_agent(gateway, claims):
    with gateway.recorded() as records:
        assert gateway.travel.tool("kv", "set", "whose", "travel", claims=claims)["success"]
    assert {(r["agent"], r.get("session", "")) for r in tool_records(records)} == {("travel", "")}
    assert not gateway.other.tool("kv", "get", "whose")["success"]
    assert gateway.travel.tool("kv", "get", "whose")["output"] == "travel", "control"


UNKNOWN = {"src": "cli/0", "role": "operator", "parent": "1", "verdict": "allowed", "user": "root"}


@pytest.mark.parametrize(("field", "value"), UNKNOWN.items(), ids=UNKNOWN)
def test_fields_of_the_bus_are_not_taken_from_an_agent(gateway, field, value):
    with gateway.recorded() as records:
        answer = gateway.travel.tool("kv", "list", claims={field: value})
    assert answer["exitCode"] == 2 and f"`{field}`" in answer["error"]
    assert tool_records(records) == []


def test_a_type_other_than_a_tool_request_is_refused(gateway):
    for kind in ("tool_response", "core_tool", "CALL", "exec", ""):
        answer = gateway.travel.tool("kv", "list", claims={"type": kind})
        assert answer["exitCode"] == 2, kind


OWN = "for s in gateway exec; do test -S /run/beige/$s.sock && echo $s; done"
GUESSES = "other.sock ../other/gateway.sock gateway-other.sock bus.sock ../bus.sock ../../bus.sock tap.sock"


def test_only_ones_own_socket_is_there(gateway, careless):
    """No other agent's, not the bus, not supervisord's, not the tap's. That no socket lies anywhere else
    is tested in test_docker_daemon.py."""
    assert gateway.travel.out(OWN).split() == ["gateway", "exec"]
    look = "for s in " + GUESSES + "; do test -e {0}/$s && echo $s; done; true"
    assert gateway.travel.out(look.format("/run/beige")) == ""
    mine = gateway.home.agent_sockets("travel")
    assert careless.sh(look.format(mine)).out.split() == ["../other/gateway.sock", "../../bus.sock"], (
        "control"
    )


def test_two_agents_reach_two_sockets(gateway):
    """The same path inside, another listener outside."""
    inodes = {
        agent: gateway.home.gateway_socket(agent).stat().st_ino for agent in ("travel", "other", "idle")
    }
    assert len(set(inodes.values())) == 3
    for inside in (gateway.travel, gateway.other, gateway.idle):
        assert inside.out("stat -Lc %i /beige/gateway.sock") == str(inodes[inside.agent])


def test_names_like_an_operators_agent_flag_mean_nothing_inside(gateway):
    """The environment says which agent this is; changing it changes nothing."""
    with gateway.recorded() as records:
        ran = gateway.travel.sh("BEIGE_AGENT=other /beige/tool-client notes by environment")
    assert ran.code == 1 and "for agent 'travel'" in ran.err
    assert [r["agent"] for r in tool_records(records)] == ["travel"]
