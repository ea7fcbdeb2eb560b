"""Threat: an agent that attributes its calls to somebody else's session with a call token.

A token is the broker's, lives as long as the command it was made for, and counts only on the socket of
that command's agent.
"""

from __future__ import annotations

import asyncio

import pytest

from beige.errors import Malformed
from beige.messages.sandbox import ExecRequest

pytestmark = pytest.mark.docker

MINE = {"session": "s1", "channel": "chat-1"}


def tool_record(records):
    started = [r for r in records if r["type"] == "tool" and r["phase"] == "started"]
    assert len(started) == 1, records
    return started[0]


def attribution(record):
    return record["agent"], record.get("session", ""), record.get("channel", ""), record.get("parent", "")


def exec_id(records):
    return next(r["id"] for r in records if r["tool"] == "exec")


def test_ones_own_token_names_session_channel_and_parent_control(gateway):
    with gateway.recorded() as records:
        assert gateway.travel.tool("kv", "list", claims={"token": "@TOKEN@"}, **MINE)["success"]
    assert attribution(tool_record(records)) == ("travel", "s1", "chat-1", exec_id(records))


def test_claims_beside_the_token_do_not_count(gateway):
    claims = {
        "token": "@TOKEN@",
        "session": "s2",
        "channel": "x",
        "agent": "other",
        "sessionContext": {"a": 1},
    }
    with gateway.recorded() as records:
        assert gateway.travel.tool("kv", "list", claims=claims, **MINE)["success"]
    assert attribution(tool_record(records)) == ("travel", "s1", "chat-1", exec_id(records))


BAD = {
    "none": {},
    "empty": {"token": ""},
    "a guess": {"token": "A" * 22},
    "cut": {"token": "@TOKEN@x"},
    "long": {"token": "t" * 256},
    "a session's name": {"token": "s1"},
}


@pytest.mark.parametrize("claims", BAD.values(), ids=BAD)
def test_without_a_right_token_a_call_has_no_session(gateway, claims):
    """It is still the agent's own call: allowed, recorded, attributed to no conversation."""
    with gateway.recorded() as records:
        assert gateway.travel.tool("kv", "list", claims=claims, **MINE)["success"]
    assert attribution(tool_record(records)) == ("travel", "", "", "")


WRONG_TYPES = {"a number": 7, "an object": {"t": 1}, "null": None, "too long": "t" * 257}


@pytest.mark.parametrize("token", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_token_that_is_none_is_refused(gateway, token):
    assert gateway.travel.tool("kv", "list", claims={"token": token})["exitCode"] == 2


def test_a_token_dies_with_its_command(gateway):
    token = gateway.travel.out("echo $BEIGE_CALL_TOKEN", **MINE)
    with gateway.recorded() as records:
        assert gateway.travel.tool("kv", "list", claims={"token": token}, session="s2")["success"]
    assert attribution(tool_record(records)) == ("travel", "", "", "")


def test_a_background_process_outlives_its_session(gateway):
    """What a command leaves running keeps the token in its environment, and the token is dead."""
    script = "(while [ ! -e go ]; do sleep .05; done; kv list >/dev/null; touch done) >/dev/null 2>&1 &"
    gateway.travel.out(f"rm -f go done; {script}", **MINE)
    with gateway.recorded() as records:
        gateway.travel.out("touch go; while [ ! -e done ]; do sleep .05; done", session="s2")
    assert attribution(tool_record(records)) == ("travel", "", "", "")


def with_live_token(gateway, agent, session, use):
    """`use(token)` in a thread while a command of `agent` runs that has this token."""

    async def work(bus):
        body = ExecRequest("echo $BEIGE_CALL_TOKEN; while [ ! -e seen ]; do sleep .05; done; rm seen")
        async with bus.open("sandbox.exec", body, agent=agent, session=session, ttl_s=60) as stream:
            token = (await anext(aiter(stream))).data.decode().strip()
            await asyncio.to_thread(use, token)
            await bus.call("sandbox.exec", ExecRequest("touch seen"), agent=agent)
            await stream.result()

    gateway.operate(work)


def test_a_stolen_token_of_another_agent_is_worth_nothing(gateway):
    """Even while it is alive. On its own agent's socket the same token works."""
    found = {}

    def use(token):
        for inside in (gateway.travel, gateway.other):
            with gateway.recorded() as records:
                assert inside.tool("kv", "list", claims={"token": token})["success"]
            found[inside.agent] = attribution(tool_record(records))

    with_live_token(gateway, "other", "s-other", use)
    assert found["travel"] == ("travel", "", "", "")
    assert found["other"][:2] == ("other", "s-other"), "control"


def test_sessions_of_one_agent_are_one_domain(gateway):
    """What is true, and no more: sessions of an agent share its container and its uid, so one can
    present another's live token. It remains the same agent, and the call is recorded."""
    found = {}

    def use(token):
        with gateway.recorded() as records:
            assert gateway.travel.tool("kv", "list", claims={"token": token}, session="s2")["success"]
        found["record"] = attribution(tool_record(records))

    with_live_token(gateway, "travel", "s1", use)
    assert found["record"][:2] == ("travel", "s1")


def test_tokens_are_random_and_never_repeated(gateway):
    tokens = [gateway.travel.out("echo $BEIGE_CALL_TOKEN") for _ in range(8)]
    assert len(set(tokens)) == len(tokens)
    assert all(len(token) >= 22 for token in tokens), "128 bits in base 64"
    for place in zip(*tokens, strict=False):
        assert len(set(place)) > 1, "no character stands still"


def test_not_even_an_operators_request_can_set_the_token(gateway):
    with pytest.raises(Malformed, match="BEIGE_CALL_TOKEN"):
        gateway.call("sandbox.exec", ExecRequest("true", env={"BEIGE_CALL_TOKEN": "t"}), agent="travel")
