"""For whom a call acts: what each role may say about itself, its agent, its parent."""

import pytest

from beige import wire
from beige.wire import Header
from broker.access import ROLES
from broker.calls import Peer
from broker.identity import forged

BROKERS_OWN = {"src": "cli/0", "hop": 3, "attempt": 1, "epoch": 5, "call": "x-1", "parent_call": "x-0"}


def peer_of(role):
    return Peer(b"x", f"{role}/0", role, ROLES[role], 3, 0.0, 0.0)


@pytest.mark.parametrize("role", sorted(ROLES))
@pytest.mark.parametrize("field", sorted(BROKERS_OWN))
@pytest.mark.parametrize("kind", [wire.CALL, wire.REPLY, wire.ERR, wire.ITEM])
def test_nobody_fills_the_brokers_own_fields(role, field, kind):
    assert forged(peer_of(role), Header(type=kind, **{field: BROKERS_OWN[field]})) == field


@pytest.mark.parametrize("role", sorted(ROLES))
@pytest.mark.parametrize("kind", [wire.CALL, wire.REPLY, wire.ERR])
@pytest.mark.parametrize(("field", "owner"), [("verdict", "policy"), ("receipt", "audit")])
def test_seals_are_set_only_by_their_owner_and_only_in_an_answer(role, kind, field, owner):
    named = forged(peer_of(role), Header(type=kind, **{field: b"yes"}))
    assert named == ("" if role == owner and kind != wire.CALL else field)


def prompt(play, peers):
    """An llm worker serving a prompt for agent travel; the header it got."""
    play.call(peers["cli"], "llm.prompt", agent="travel", session="s1", channel="cli")
    return play.one("llm/0")


def test_a_child_call_inherits_agent_session_and_channel(play):
    peers = play.house()
    serving = prompt(play, peers)
    play.call(peers["llm"], "sandbox.exec", parent=serving.id)
    asked = play.one("policy/0")
    assert (asked.agent, asked.session, asked.channel) == ("travel", "s1", "cli")
    assert asked.parent_call == serving.call


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"agent": "travel"},
        {"agent": "travel", "session": "s1"},
        {"parent": 999},
        {"parent": "served", "agent": "other"},
        {"parent": "served", "session": "other"},
        {"parent": "served", "channel": "other"},
        {"parent": "served", "token": "x"},
    ],
    ids=str,
)
def test_an_llm_worker_can_act_only_for_the_prompts_it_serves(play, fields):
    peers = play.house()
    serving = prompt(play, peers)
    if fields.get("parent") == "served":
        fields = fields | {"parent": serving.id}
    play.call(peers["llm"], "sandbox.exec", **fields)
    assert play.one("llm/0").code == "denied"
    assert not play.take("policy/0")


def test_a_parent_that_is_answered_is_no_parent(play):
    peers = play.house()
    serving = prompt(play, peers)
    play.reply(peers["llm"], serving)
    play.call(peers["llm"], "sandbox.exec", parent=serving.id)
    assert play.one("llm/0").code == "denied"


def test_another_workers_prompt_is_no_parent(play):
    peers = play.house()
    serving = prompt(play, peers)
    second = play.peer("llm/1", "llm")
    play.call(second, "sandbox.exec", parent=serving.id)
    assert play.one("llm/1").code == "denied"


def test_the_end_of_the_parent_ends_its_children(play):
    peers = play.house()
    serving = prompt(play, peers)
    play.call(peers["llm"], "sandbox.exec", number=7, parent=serving.id)
    play.to_executor(peers)
    play.core.cancel(peers["cli"], Header(type=wire.CANCEL, id=1))
    assert play.one("sandbox/0").type == wire.CANCEL
    assert play.recorded(peers).code == "cancelled"
    assert {h.code for h, _ in play.take("llm/0")} == {"", "cancelled"}


def exec_with_token(play, peers, agent="travel"):
    play.call(peers["cli"], "sandbox.exec", number=50, agent=agent, session="s1", channel="cli")
    at = play.to_executor(peers)
    assert len(at.token) >= 32
    return at


def test_a_call_token_completes_session_and_parent(play):
    peers = play.house()
    at = exec_with_token(play, peers)
    play.call(peers["bridge"], "tools.call", agent="travel", token=at.token)
    asked = play.one("policy/0")
    assert (asked.agent, asked.session, asked.channel) == ("travel", "s1", "cli")
    assert (asked.parent_call, asked.token) == (at.call, "")


@pytest.mark.parametrize("case", ["another agent's", "stale", "invented", "missing"])
def test_a_bad_token_means_no_session_never_somebody_elses(play, case):
    peers = play.house()
    at = exec_with_token(play, peers)
    agent = "other" if case == "another agent's" else "travel"
    token = {"invented": "A" * 32, "missing": ""}.get(case, at.token)
    if case == "stale":
        play.reply(peers["sandbox"], at)
        play.recorded(peers)
    play.call(peers["bridge"], "tools.call", agent=agent, token=token)
    asked = play.one("policy/0")
    assert (asked.agent, asked.session, asked.channel, asked.parent_call) == (agent, "", "", "")


@pytest.mark.parametrize("field", ["session", "channel"])
def test_the_bridge_cannot_name_a_session(play, field):
    peers = play.house()
    play.call(peers["bridge"], "tools.call", agent="travel", **{field: "s1"})
    assert play.one("bridge/0").code == "denied"


def test_only_sandbox_exec_is_given_a_token_and_other_hops_never_see_it(play):
    peers = play.house()
    exec_with_token(play, peers)
    play.call(peers["cli"], "sandbox.read", number=51, agent="travel")
    asked = play.one("policy/0")
    assert asked.token == ""
    play.reply(peers["policy"], asked, verdict=b"yes")
    started = play.one("audit/0")
    assert started.token == ""
    play.reply(peers["audit"], started, receipt=b"w")
    assert play.one("sandbox/0").token == ""


def test_an_answer_counts_only_from_the_worker_the_call_was_given_to(play):
    peers = play.house()
    serving = prompt(play, peers)
    thief = play.peer("llm/1", "llm")
    play.reply(thief, serving, body=b"stolen")
    assert not play.take("cli/0")
    assert play.core.counters["orphan_reply"] == 1
    play.reply(peers["llm"], serving, body=b"honest")
    assert play.take("cli/0")[0][1] == b"honest"


def test_a_peer_may_announce_only_its_own_service(play):
    peers = play.house()
    play.core.hello(peers["llm"], Header(type=wire.HELLO, service="policy", credit=100))
    assert play.one("llm/0").code == "denied"
    assert list(play.core.services["policy"].workers.values()) == [peers["policy"]]


def test_too_many_offences_get_a_peer_kicked(play):
    peers = play.house()
    for number in range(101):
        play.call(peers["llm"], "tools.call", number=number + 1)
    assert play.port.kicked == ["llm/0"]
    assert not peers["llm"].alive
