"""Who may call what: the whole matrix, written out once more by hand."""

import re
from pathlib import Path

import pytest

from beige import messages, wire
from broker.access import BUS, GOVERNED, OPERATED, ROLES, stations
from broker.calls import Peer
from broker.identity import Refusal, settle

OPERATOR = (messages.GOVERNED - {"egress.connect", "policy.lease", "tools.hook"}) | {
    "policy.learn",
    "channels.list",
    *("llm.prompt", "sandbox.ensure", "sandbox.list", "sandbox.remove", "bus.stats"),
    *("sandbox.show", "sandbox.verify", "bus.cancel"),
    *("sandbox.stop", "sandbox.logs"),
    *("llm.compact", "llm.sessions", "llm.session", "llm.history", "llm.fork", "llm.remove"),
    *("llm.settings", "policy.budget", "llm.chat", "audit.query"),
}
ALLOWED = {
    "cli": OPERATOR,
    "gateway": OPERATOR,
    "llm": {"sandbox.exec", "sandbox.read", "sandbox.write", "sandbox.patch", "policy.lease", "tools.hook"},
    "bridge": {"tools.call", "egress.connect"},
    "channels": {"llm.prompt", "llm.settings", "llm.session"},
    "egress": set(),
    "tap": {"bus.tap"},
    "policy": set(),
    "audit": set(),
    "sandbox": set(),
    "tools": set(),
}
ODD = [
    "policy.authorize",
    "audit.append",
    "bus.kick",
    "sandbox.",
    ".exec",
    ".",
    "sandbox.exec.x",
    "Sandbox.exec",
]


def peer_of(role):
    return Peer(b"x", f"{role}/0", role, ROLES[role], 3, 0.0, 0.0)


def test_the_matrix_names_every_role():
    assert set(ALLOWED) == set(ROLES)


@pytest.mark.parametrize("role", sorted(ROLES))
@pytest.mark.parametrize("method", [*sorted(messages.METHODS), *ODD])
def test_role_may_call_only_its_methods(role, method):
    service, _, name = method.partition(".")
    header = wire.Header(type=wire.CALL, id=1, service=service, method=name)
    try:
        settle(peer_of(role), header, {})
        admitted = True
    except Refusal as refusal:
        assert refusal.code == "denied"
        admitted = "may not call" not in refusal.message  # needing an agent comes after being allowed
    assert admitted == (method in ALLOWED[role])


def test_routes_and_messages_agree_on_what_is_governed():
    assert GOVERNED == messages.GOVERNED
    assert set(messages.METHODS) == GOVERNED | OPERATED | BUS | {"bus.tap"}


@pytest.mark.parametrize("method", sorted(messages.METHODS))
def test_every_governed_call_passes_policy_then_audit_then_executor_then_audit(method):
    service, _, name = method.partition(".")
    way = stations(service, name)
    if method in messages.GOVERNED:
        assert way == ((1, "policy"), (2, "audit"), (3, service), (4, "audit"))
    else:
        assert way == ((0, service),)


def test_a_lease_is_only_for_the_agent_of_a_prompt_being_served():
    header = wire.Header(type=wire.CALL, id=1, service="policy", method="lease")
    with pytest.raises(Refusal, match="needs an agent"):
        settle(peer_of("llm"), header, {})
    header.agent = "travel"
    with pytest.raises(Refusal, match="may not name an agent"):
        settle(peer_of("llm"), header, {})


def test_the_protocol_page_lists_the_direct_methods():
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    section = page.partition("## Direct methods")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z.]+)` \|", section, re.MULTILINE)) == OPERATED | BUS


def test_only_operators_name_agents_and_only_the_bridge_stamps():
    assert {name for name, role in ROLES.items() if role.names_agents} == {"cli", "gateway"}
    assert {name for name, role in ROLES.items() if role.own_sessions} == {"channels"}
    assert {name for name, role in ROLES.items() if role.stamps_agents} == {"bridge"}


def test_each_service_is_served_by_its_own_role_alone():
    serves = {name: role.serves for name, role in ROLES.items() if role.serves}
    assert serves == {
        name: name for name in ("policy", "audit", "sandbox", "tools", "egress", "llm", "channels")
    }
