"""Each verdict is sealed for exactly its request; a no as well as a yes."""

import logging

import pytest

from beige.errors import Denied, Malformed
from beige.messages import encode
from beige.messages.policy import LeaseRequest
from beige.messages.tools import HookCall, ToolCall
from beige.seals import read_verdict, request_digest
from beige.wire import Header
from services.policy.core import Grants
from services.policy.egress import Doors
from services.policy.service import reply

KEY = b"k" * 32
CLOSED = Doors({}, logging.getLogger("policy"))
GRANTS = Grants(
    tools={"travel": frozenset({"kv"})},
    models={"travel": {("p", "m")}},
    hooks={"travel": frozenset({("guard", "prePrompt")})},
    channels={"chat": ("other",), "rig": ("travel",)},
)


def header(**fields):
    defaults = {"service": "tools", "method": "call", "agent": "travel", "src": "bridge/0", "call": "1-1"}
    return Header(**{**defaults, **fields})


@pytest.mark.parametrize(("tool", "denied"), [("kv", ""), ("git", "tool 'git' not allowed")])
def test_the_verdict_is_sealed_for_its_request(tool, denied):
    body = encode(ToolCall(tool))
    answer = reply(GRANTS, CLOSED, KEY, header(), body)
    verdict = read_verdict(KEY, request_digest(header(), body), answer.verdict)
    assert verdict.allowed == (not denied)
    assert verdict.reason == answer.denied
    assert denied in answer.denied
    for other, other_body in [(header(agent="other"), body), (header(call="1-2"), body),
                              (header(), encode(ToolCall("kv", ["x"])))]:  # fmt: skip
        with pytest.raises(Denied):
            read_verdict(KEY, request_digest(other, other_body), answer.verdict)


@pytest.mark.parametrize(
    ("model", "denied"), [("m", ""), ("n", "model 'p/n' not allowed for agent 'travel'")]
)
def test_a_lease_is_decided_by_its_model(model, denied):
    call, body = header(service="policy", method="lease", src="llm/0"), encode(LeaseRequest("p", model))
    answer = reply(GRANTS, CLOSED, KEY, call, body)
    assert read_verdict(KEY, request_digest(call, body), answer.verdict).allowed == (not denied)
    assert denied in answer.denied


@pytest.mark.parametrize(
    ("agent", "plugin", "hook", "allowed"),
    [
        pytest.param("travel", "guard", "prePrompt", True, id="listed"),
        pytest.param("travel", "guard", "postResponse", False, id="another hook of the plugin"),
        pytest.param("travel", "kv", "prePrompt", False, id="a plugin that it calls"),
        pytest.param("other", "guard", "prePrompt", False, id="another agent"),
    ],
)
def test_a_hook_is_run_only_for_an_agent_that_names_it(agent, plugin, hook, allowed):
    call, body = header(method="hook", src="llm/0", agent=agent), encode(HookCall(plugin, hook, "text"))
    answer = reply(GRANTS, CLOSED, KEY, call, body)
    assert read_verdict(KEY, request_digest(call, body), answer.verdict).allowed == allowed
    denial = f"plugin '{plugin}' may not listen to {hook} of agent '{agent}'"
    assert answer.denied == ("" if allowed else f"Permission denied: {denial}")


def test_the_longest_reason_survives_its_seal():
    answer = reply(GRANTS, CLOSED, KEY, header(agent="a" * 256), encode(ToolCall("t" * 64)))
    body = encode(ToolCall("t" * 64))
    assert (
        read_verdict(KEY, request_digest(header(agent="a" * 256), body), answer.verdict).reason
        == answer.denied
    )


def test_what_cannot_be_read_gets_no_verdict():
    with pytest.raises(Malformed):
        reply(GRANTS, CLOSED, KEY, header(), b"\xc1")


@pytest.mark.parametrize(
    ("channel", "denied"),
    [("", ""), ("cli", ""), ("rig", ""), ("chat", "channel 'chat' may not speak to agent 'travel'")],
)
def test_an_agent_acts_only_for_the_channels_that_list_it(channel, denied):
    call, body = header(channel=channel), encode(ToolCall("kv"))
    answer = reply(GRANTS, CLOSED, KEY, call, body)
    assert read_verdict(KEY, request_digest(call, body), answer.verdict).allowed == (not denied)
    assert denied in answer.denied
