"""What a prompt is answered that another process had begun."""

import pytest

from beige.errors import Denied, Failed, PeerLost
from services.llm.conversation import Assistant, Header, Hook, Prompt, Text, ToolCall, ToolResult, TurnEnd
from services.llm.turn.again import answered_before

USAGE = {"input_tokens": 10, "output_tokens": 2}


def said(text, *calls, stop="end_turn"):
    return Assistant(
        model="p/m", content=[Text(text), *calls], stop_reason=stop, usage=USAGE, cost_nano=10**9
    )


def journal(*ends):
    """Two turns, of the calls c1 and c2; `ends` close the first one."""
    call = ToolCall("t", "exec", {})
    work = [said("I look.", call, stop="tool_use"), ToolResult(tool_id="t", tool="exec", content=[]), *ends]
    return [
        Header(v=1, id="s", agent="a"),
        *[Prompt(text="one", call="c1"), *work],
        *[Prompt(text="two", call="c2"), said("2"), TurnEnd(outcome="answered")],
    ]


def test_one_that_has_not_begun_is_not_known():
    assert answered_before("s", [], "c1") is None
    assert answered_before("s", journal(TurnEnd(outcome="answered")), "c3") is None


def test_one_that_was_answered_is_answered_the_same():
    found = answered_before("s", journal(said("Done."), TurnEnd(outcome="answered")), "c1")
    assert (found.text, found.stop_reason, found.model, found.tool_calls) == ("Done.", "end_turn", "p/m", 1)
    assert (found.usage, found.cost) == ({"input_tokens": 20, "output_tokens": 4}, 2.0)
    assert answered_before("s", journal(TurnEnd(outcome="max_turns")), "c1").stop_reason == "max_turns"
    assert answered_before("s", journal(), "c2").text == "2"


@pytest.mark.parametrize("outcome", ["interrupted", "cancelled"])
def test_one_that_was_interrupted_is_told_so(outcome):
    with pytest.raises(PeerLost, match="interrupted"):
        answered_before("s", journal(TurnEnd(outcome=outcome)), "c1")


def test_one_that_had_failed_fails_with_its_reason():
    with pytest.raises(Failed, match="no key"):
        answered_before("s", journal(TurnEnd(outcome="failed", error="no key")), "c1")


def test_one_that_a_hook_refused_is_refused_again():
    with pytest.raises(Denied, match="plugin 'guard' refused"):
        answered_before("s", journal(TurnEnd(outcome="refused", error="plugin 'guard' refused it")), "c1")


def test_an_answer_that_a_hook_replaced_stays_replaced():
    hook = Hook(plugin="guard", hook="postResponse", state="replaced", text="[hidden]")
    found = answered_before("s", journal(said("a secret"), hook, TurnEnd(outcome="answered")), "c1")
    assert found.text == "[hidden]"
