"""A turn, played: events in, commands out."""

import pytest

from beige.messages.llm import PromptEvent
from services.llm.conversation import (
    INTERRUPTED,
    NOT_STARTED,
    Assistant,
    Attempt,
    Image,
    Prompt,
    Text,
    ToolCall,
    ToolResult,
    ToolStart,
    TurnEnd,
)
from services.llm.core import Turn
from services.llm.events import (
    CallModel,
    Emit,
    Fail,
    Finish,
    MessageDone,
    ModelFailed,
    MovedOn,
    Persist,
    PromptAccepted,
    RunTool,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolFinished,
    TurnCancelled,
)
from services.llm.providers.failures import ModelError

ONE, TWO = ToolCall("a", "exec", {"command": "ls"}), ToolCall("b", "read", {"path": "x"})


def a_turn(max_turns=10, entries=(), scripted=False):
    turn = Turn("s1", entries, model="p/m", max_turns=max_turns, scripted=scripted)
    return turn, turn.handle(PromptAccepted(Prompt(text="do it")))


def said(*content, stop="end_turn", usage=None):
    return MessageDone(Assistant(model="p/m", content=list(content), stop_reason=stop, usage=usage or {}))


def finished(call, text="ok", **more):
    return ToolFinished(ToolResult(tool_id=call.id, tool=call.name, content=[Text(text)], **more))


def kinds(commands):
    """Names of the commands, with the entry's or event's own name."""
    named = []
    for command in commands:
        match command:
            case Persist(entry):
                named.append(type(entry).__name__)
            case Emit(event):
                named.append(event.kind)
            case _:
                named.append(type(command).__name__)
    return named


def test_the_prompt_is_on_disk_before_the_model_is_called():
    _, commands = a_turn()
    assert kinds(commands) == ["Prompt", "accepted", "CallModel"]
    assert commands[0].sync


def test_text_is_passed_on_as_it_comes_and_the_answer_ends_the_turn():
    turn, _ = a_turn()
    assert turn.handle(TextDelta("hel")) == [Emit(PromptEvent(kind="text_delta", text="hel"))]
    assert turn.handle(ThinkingDelta("hm")) == [Emit(PromptEvent(kind="thinking_delta", text="hm"))]
    assert turn.handle(ToolCallDelta("exec")) == []
    commands = turn.handle(said(Text("hello"), usage={"input_tokens": 3}))
    assert kinds(commands) == ["Assistant", "message_end", "TurnEnd", "Finish"]
    result = commands[-1].result
    assert (result.text, result.stop_reason, result.model) == ("hello", "end_turn", "p/m")
    assert (result.session, result.usage, result.tool_calls) == ("s1", {"input_tokens": 3}, 0)
    assert turn.handle(TextDelta("late")) == []


def test_tool_calls_run_one_after_the_other_in_the_models_order():
    turn, _ = a_turn()
    commands = turn.handle(said(Text("I will"), ONE, TWO, stop="tool_use"))
    assert kinds(commands) == ["Assistant", "message_end", "ToolStart", "tool_start", "RunTool"]
    assert commands[-1].call == ONE
    commands = turn.handle(finished(ONE))
    assert kinds(commands) == ["ToolResult", "tool_end", "ToolStart", "tool_start", "RunTool"]
    assert commands[-1].call == TWO
    assert kinds(turn.handle(finished(TWO))) == ["ToolResult", "tool_end", "CallModel"]
    assert [type(message).__name__ for message in turn.messages] == [
        "Prompt", "Assistant", "ToolResult", "ToolResult",
    ]  # fmt: skip
    assert turn.handle(said(Text("done")))[-1].result.tool_calls == 2


def test_usage_of_all_answers_is_summed():
    turn, _ = a_turn()
    turn.handle(said(ONE, stop="tool_use", usage={"input_tokens": 10, "output_tokens": 2}))
    turn.handle(finished(ONE))
    commands = turn.handle(said(Text("x"), usage={"input_tokens": 20}))
    assert commands[-1].result.usage == {"input_tokens": 30, "output_tokens": 2}


def test_calls_run_whatever_the_stop_reason_says():
    turn, _ = a_turn()
    assert isinstance(turn.handle(said(ONE, stop="max_tokens"))[-1], RunTool)


@pytest.mark.parametrize("stop", ["refusal", "context_full"])
def test_a_refused_answers_calls_are_not_run_and_get_results(stop):
    turn, _ = a_turn()
    commands = turn.handle(said(Text("no"), ONE, stop=stop))
    assert kinds(commands) == ["Assistant", "message_end", "ToolResult", "TurnEnd", "Finish"]
    assert commands[2].entry.text == NOT_STARTED
    assert commands[-1].result.stop_reason == stop


def test_the_turn_stops_at_max_turns_with_every_call_answered():
    turn, _ = a_turn(max_turns=1)
    turn.handle(said(ONE, stop="tool_use"))
    commands = turn.handle(finished(ONE))
    assert kinds(commands) == ["ToolResult", "tool_end", "notice", "TurnEnd", "Finish"]
    assert commands[-1].result.stop_reason == "max_turns"
    assert commands[3].entry.outcome == "max_turns"


def test_an_empty_answer_ends_the_turn_and_leaves_no_empty_message():
    turn, _ = a_turn()
    assert kinds(turn.handle(said())) == ["message_end", "TurnEnd", "Finish"]


def test_a_model_failure_ends_the_turn_and_keeps_what_was_shown():
    turn, _ = a_turn()
    turn.handle(TextDelta("half an ans"))
    commands = turn.handle(ModelFailed(ModelError("overloaded", "p/m: overloaded")))
    assert kinds(commands) == ["Assistant", "TurnEnd", "Fail"]
    assert commands[0].entry.content == [Text("half an ans")]
    assert commands[0].entry.stop_reason == "error"
    assert commands[1].entry == TurnEnd(outcome="failed", error="p/m: overloaded")
    assert commands[2] == Fail("p/m: overloaded")


def test_the_answer_of_a_failed_attempt_is_void_and_the_next_one_takes_its_place():
    turn, _ = a_turn()
    turn.handle(TextDelta("half an ans"))
    commands = turn.handle(MovedOn("p/m", "stream_cut", "p/m: broke off", "q/n"))
    assert kinds(commands) == ["Attempt", "model_fallback"]
    assert commands[0].entry == Attempt(
        model="p/m", kind="stream_cut", error="p/m: broke off", text="half an ans"
    )
    text = "p/m: broke off; trying with q/n; the answer begun above is void"
    assert commands[1].event == PromptEvent(kind="model_fallback", text=text, model="q/n")
    assert [type(message) for message in turn.messages] == [Prompt], "no model is shown it"
    turn.handle(TextDelta("whole"))
    assert turn.handle(said(Text("whole")))[-1].result.text == "whole"


def test_an_attempt_that_said_nothing_makes_nothing_void_and_a_second_try_is_called_so():
    turn, _ = a_turn()
    (_, shown) = turn.handle(MovedOn("p/m", "overloaded", "p/m: overloaded", "p/m"))
    assert shown.event.text == "p/m: overloaded; trying again with p/m"


def test_what_the_last_model_said_is_kept_under_its_own_name():
    turn, _ = a_turn()
    turn.handle(MovedOn("p/m", "overloaded", "p/m: overloaded", "q/n"))
    turn.handle(TextDelta("half"))
    commands = turn.handle(TurnCancelled())
    assert (commands[0].entry.model, commands[0].entry.text) == ("q/n", "half")


def test_a_script_that_stands_in_for_a_model_says_so_in_the_event_and_the_result():
    turn, _ = a_turn()
    commands = turn.handle(MovedOn("p/m", "auth", "p/m: no", "scripted/x", scripted=True))
    assert kinds(commands) == ["Attempt", "model_fallback", "notice"]
    answer = Assistant(model="scripted/x", content=[Text("x")], stop_reason="end_turn", scripted=True)
    assert turn.handle(MessageDone(answer))[-1].result.scripted


def test_a_cancelled_turn_tells_which_calls_may_have_run():
    turn, _ = a_turn()
    turn.handle(said(ONE, TWO, stop="tool_use"))
    commands = turn.handle(TurnCancelled())
    assert kinds(commands) == ["ToolResult", "ToolResult", "TurnEnd"]
    assert [command.entry.text for command in commands[:2]] == [INTERRUPTED, NOT_STARTED]
    assert commands[-1].entry.outcome == "cancelled"
    assert turn.handle(TurnCancelled()) == []


def test_shown_text_is_not_written_twice_when_the_turn_ends_after_it():
    turn, _ = a_turn()
    turn.handle(TextDelta("I will"))
    turn.handle(said(Text("I will"), ONE, stop="tool_use"))
    assert "Assistant" not in kinds(turn.handle(TurnCancelled()))


def test_a_scripted_turn_says_so_first_and_in_its_result():
    turn, commands = a_turn(scripted=True)
    assert kinds(commands) == ["Prompt", "accepted", "notice", "CallModel"]
    assert commands[2].event.text == "scripted model: a script file speaks here, not a language model"
    assert turn.handle(said(Text("x")))[-1].result.scripted


def test_earlier_turns_are_part_of_the_conversation():
    before = [Prompt(text="one"), Assistant(model="p/m", content=[Text("1")], stop_reason="end_turn"),
              TurnEnd(outcome="answered")]  # fmt: skip
    turn, _ = a_turn(entries=before)
    assert [type(message).__name__ for message in turn.messages] == ["Prompt", "Assistant", "Prompt"]


def test_what_people_see_of_a_call_is_bounded():
    turn, _ = a_turn()
    big = ToolCall(
        "a", "write", {"path": "x", "content": "y" * 1_000_000, "n": 10**40, "deep": {"k": "z" * 9000}}
    )
    event = turn.handle(said(big, stop="tool_use"))[3].event
    assert all(len(str(value)) < 2100 for value in event.args.values())
    result = ToolResult(
        tool_id="a", tool="write", content=[Text("r" * 1_000_000), Image("image/png", b"x" * 99)]
    )
    assert len(turn.handle(ToolFinished(result))[1].event.text) < 5000


def test_the_model_is_called_again_only_when_every_call_has_its_result():
    turn, _ = a_turn()
    turn.handle(said(ONE, TWO, stop="tool_use"))
    assert CallModel() not in turn.handle(finished(ONE))
    assert CallModel() in turn.handle(finished(TWO))


def test_a_call_is_written_down_before_it_leaves():
    turn, _ = a_turn()
    commands = turn.handle(said(ONE, stop="tool_use"))
    assert commands.index(Persist(ToolStart(tool_id="a"))) < commands.index(RunTool(ONE))
    assert not any(isinstance(command, Finish) for command in commands)
