"""Policy denies by default and says so in the seed's words."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import Malformed
from beige.messages import encode
from beige.messages.policy import LeaseRequest
from beige.messages.sandbox import ExecRequest, ReadRequest
from beige.messages.tools import ToolCall
from services.policy.core import decide, decide_model, model_named, tool_named

RULES = {"travel": frozenset({"kv"}), "bare": frozenset()}
CORE = ["sandbox.exec", "sandbox.read", "sandbox.write", "sandbox.patch"]


@pytest.mark.parametrize("agent", ["travel", "bare"])
@pytest.mark.parametrize("method", CORE)
def test_core_tools_are_allowed_for_configured_agents(agent, method):
    assert decide(RULES, agent, method).allowed


def test_a_listed_tool_is_allowed():
    decision = decide(RULES, "travel", "tools.call", "kv")
    assert decision.allowed
    assert decision.reason == ""


@pytest.mark.parametrize(
    ("agent", "method", "tool", "reason"),
    [
        ("travel", "tools.call", "git", "Permission denied: tool 'git' not allowed for agent 'travel'"),
        ("bare", "tools.call", "kv", "Permission denied: tool 'kv' not allowed for agent 'bare'"),
        ("travel", "tools.call", "KV", "Permission denied: tool 'KV' not allowed for agent 'travel'"),
        ("travel", "tools.call", "kv ", "Permission denied: tool 'kv ' not allowed for agent 'travel'"),
        ("travel", "tools.call", "", "Permission denied: tool '' not allowed for agent 'travel'"),
        ("travel", "tools.call", "exec", "Permission denied: tool 'exec' not allowed for agent 'travel'"),
        ("nobody", "tools.call", "kv", "Permission denied: agent 'nobody' is not configured"),
        ("", "sandbox.exec", "", "Permission denied: agent '' is not configured"),
        ("Travel", "sandbox.exec", "", "Permission denied: agent 'Travel' is not configured"),
        ("travel", "sandbox.remove", "", "Permission denied: tool 'remove' not allowed for agent 'travel'"),
        ("travel", "llm.prompt", "", "Permission denied: tool 'prompt' not allowed for agent 'travel'"),
        ("travel", "sandbox.kv", "kv", "Permission denied: tool 'kv' not allowed for agent 'travel'"),
        ("travel", "tools.reload", "kv", "Permission denied: tool 'reload' not allowed for agent 'travel'"),
    ],
)
def test_everything_else_is_denied(agent, method, tool, reason):
    decision = decide(RULES, agent, method, tool)
    assert not decision.allowed
    assert decision.reason == reason


MODEL, OTHER = ("anthropic", "claude"), ("zai", "glm")


@pytest.mark.parametrize(
    ("agent", "model", "allowed"),
    [("travel", MODEL, True), ("travel", OTHER, False), ("idle", MODEL, False), ("", MODEL, False),
     ("travel", ("anthropic", "claude "), False), ("travel", ("", ""), False)],
)  # fmt: skip
def test_an_agent_reaches_its_own_models_alone(agent, model, allowed):
    decision = decide_model({"travel": {MODEL}, "idle": {OTHER}}, agent, model)
    reason = f"Permission denied: model '{model[0]}/{model[1]}' not allowed for agent '{agent}'"
    assert (decision.allowed, decision.reason) == (allowed, "" if allowed else reason)


def test_the_model_is_the_one_in_the_body():
    assert model_named("policy.lease", encode(LeaseRequest("p", "m", 5))) == ("p", "m")
    assert model_named("tools.call", b"\xc1") is None
    with pytest.raises(Malformed, match=r"policy\.lease"):
        model_named("policy.lease", msgspec.msgpack.encode({"provider": "p", "model": "m", "agent": "x"}))


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=64))
def test_nothing_is_allowed_that_is_not_written_down(agent, method, tool):
    written = agent in RULES and (method in CORE or (method == "tools.call" and tool in RULES[agent]))
    assert decide(RULES, agent, method, tool).allowed == written


def test_the_tool_is_the_one_in_the_body():
    assert tool_named("tools.call", encode(ToolCall("kv", ["get", "a"]))) == "kv"
    assert tool_named("sandbox.exec", encode(ExecRequest("true"))) == ""


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("tools.call", b""),
        ("tools.call", b"\xc1"),
        ("tools.call", msgspec.msgpack.encode({"tool": 3})),
        ("tools.call", msgspec.msgpack.encode({"tool": "kv", "agent": "other"})),
        ("tools.call", msgspec.msgpack.encode({"args": ["get"]})),
        ("tools.call", b"\x91" * 100_000),
        ("sandbox.exec", msgspec.msgpack.encode({"command": 1})),
        ("sandbox.read", encode(ReadRequest("x")) + b"\x00"),
    ],
    ids=["empty", "not-msgpack", "wrong-type", "unknown-field", "no-tool", "deep", "exec", "trailing"],
)
def test_a_body_that_cannot_be_read_is_malformed(method, body):
    with pytest.raises(Malformed) as caught:
        tool_named(method, body)
    assert str(caught.value).startswith(method)


@given(st.binary(max_size=200))
def test_hostile_bodies_raise_nothing_but_malformed(body):
    for method in [*CORE, "tools.call"]:
        try:
            tool_named(method, body)
        except Malformed:
            pass
