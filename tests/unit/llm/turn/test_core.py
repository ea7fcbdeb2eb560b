"""A turn, played: events in, commands out."""

import pytest

from beige.messages.llm import PromptEvent
from beige.windows import Limits
from services.llm.conversation import (
    INTERRUPTED,
    NOT_STARTED,
    Assistant,
    Attempt,
    Hook,
    Image,
    Prompt,
    Text,
    ToolCall,
    ToolResult,
    ToolStart,
    TurnEnd,
)
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
    PromptReviewed,
    Review,
    RunTool,
    Summarised,
    SummaryFailed,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolFinished,
    TurnCancelled,
)
from services.llm.providers.failures import ModelError
from services.llm.turn.core import Turn

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


# --- a conversation that grows too long ---------------------------------------------------------------

LIMITS = Limits(10_000, 5000)
TOO_LONG = ModelError("context_too_long", "p/m: too long")


def a_long_turn(tokens=9000):
    answer = said(Text("x" * 4000), usage={"input_tokens": tokens}).message
    before = [Prompt(text="old"), answer, TurnEnd(outcome="answered")]
    turn = Turn("s1", before, model="p/m", max_turns=10, limits=LIMITS)
    return turn, turn.handle(PromptAccepted(Prompt(text="do it")))


def a_summary(text="in short"):
    usage = {"input_tokens": 100, "output_tokens": 10}
    return Summarised(Assistant(model="p/m", content=[Text(text)], stop_reason="end_turn", usage=usage))


def test_above_the_threshold_a_summary_comes_before_the_answer():
    turn, commands = a_long_turn()
    assert kinds(commands) == ["Prompt", "accepted", "Summarise"]
    commands = turn.handle(a_summary())
    assert kinds(commands) == ["Compaction", "compaction", "CallModel"]
    assert commands[0].sync and commands[0].entry.messages == 2
    assert [message.text.rpartition("\n")[2] for message in turn.messages] == ["in short", "do it"]
    commands = turn.handle(said(Text("done"), usage={"input_tokens": 50}))
    assert commands[-1].result.usage == {"input_tokens": 150, "output_tokens": 10}, "it is paid for, too"


def test_between_tool_calls_of_one_turn_it_is_summarised_too():
    turn, commands = a_long_turn(tokens=100)
    assert kinds(commands)[-1] == "CallModel"
    turn.handle(said(ONE, stop="tool_use", usage={"input_tokens": 9000}))
    assert kinds(turn.handle(finished(ONE, "x" * 9000))) == ["ToolResult", "tool_end", "Summarise"]
    turn.handle(a_summary())
    assert [message.text.rpartition("\n")[2] for message in turn.messages] == ["in short", "do it"]


def test_without_a_summary_the_turn_says_so_and_goes_on():
    turn, _ = a_long_turn()
    commands = turn.handle(SummaryFailed(ModelError("overloaded", "p/m: overloaded")))
    assert kinds(commands) == ["notice", "CallModel"]
    assert commands[0].event.text == (
        "the conversation could not be summarised: p/m: overloaded; it goes on as it is"
    )
    turn.handle(said(ONE, stop="tool_use", usage={"input_tokens": 9000}))
    assert kinds(turn.handle(finished(ONE)))[-1] == "CallModel", "it is not asked for again in this turn"


def test_too_long_is_answered_by_one_summary_and_one_retry():
    turn, _ = a_long_turn(tokens=100)
    turn.handle(TextDelta("I be"))
    commands = turn.handle(ModelFailed(TOO_LONG))
    assert kinds(commands) == ["Attempt", "model_fallback", "Summarise"]
    assert "the answer begun above is void" in commands[1].event.text
    assert kinds(turn.handle(a_summary())) == ["Compaction", "compaction", "CallModel"]
    commands = turn.handle(ModelFailed(TOO_LONG))
    assert kinds(commands) == ["TurnEnd", "Fail"]


def test_too_long_and_no_summary_ends_the_turn_with_both_reasons():
    turn, _ = a_long_turn(tokens=100)
    turn.handle(ModelFailed(TOO_LONG))
    commands = turn.handle(SummaryFailed(ModelError("overloaded", "p/m: overloaded")))
    assert kinds(commands) == ["TurnEnd", "Fail"]
    assert commands[-1].message == (
        "p/m: too long; the conversation could not be summarised: p/m: overloaded"
    )


def test_another_failure_asks_for_no_summary():
    turn, _ = a_long_turn(tokens=100)
    assert kinds(turn.handle(ModelFailed(ModelError("auth", "no key")))) == ["TurnEnd", "Fail"]


def test_a_turn_cancelled_while_it_is_summarised_ends():
    turn, _ = a_long_turn()
    assert kinds(turn.handle(TurnCancelled())) == ["TurnEnd"]
    assert turn.handle(a_summary()) == []


# --- hooks ------------------------------------------------------------------------------------------


def a_listened_turn():
    turn = Turn("s1", [], model="p/m", max_turns=10)
    return turn, turn.handle(PromptAccepted(Prompt(text="do it", hooks=["guard"]), listened=True))


def hook(state, name="prePrompt", text=""):
    return Hook(plugin="guard", hook=name, state=state, text=text, reason="why")


def test_a_prompt_with_listeners_is_on_disk_before_they_are_asked_and_then_goes_to_the_model():
    turn, commands = a_listened_turn()
    assert kinds(commands) == ["Prompt", "accepted", "Review"]
    assert turn.messages == []
    commands = turn.handle(PromptReviewed((hook("replaced", text="done it"),)))
    assert kinds(commands) == ["Hook", "notice", "CallModel"]
    assert commands[0].sync
    assert [message.text for message in turn.messages] == ["done it"]


@pytest.mark.parametrize(
    ("state", "outcome", "refused"), [("refused", "refused", True), ("failed", "failed", False)]
)
def test_a_prompt_that_is_stopped_ends_the_turn(state, outcome, refused):
    turn, _ = a_listened_turn()
    commands = turn.handle(PromptReviewed((hook(state),)))
    assert kinds(commands) == ["Hook", "TurnEnd", "Fail"]
    assert (commands[1].entry.outcome, commands[2].refused, turn.over) == (outcome, refused, True)
    assert turn.messages == []


def test_observers_alone_change_nothing():
    turn = Turn("s1", [], model="p/m", max_turns=10)
    commands = turn.handle(PromptAccepted(Prompt(text="do it"), listened=True))
    assert commands[-1] == Review(Prompt(text="do it"))
    assert kinds(turn.handle(PromptReviewed(()))) == ["CallModel"]


def test_a_replaced_answer_is_the_result_and_the_models_own_words_are_kept():
    turn, _ = a_turn()
    done = MessageDone(said(Text("secret")).message, (hook("replaced", "postResponse", "hidden"),))
    commands = turn.handle(done)
    assert kinds(commands) == ["Assistant", "Hook", "notice", "message_end", "TurnEnd", "Finish"]
    assert (commands[0].entry.text, commands[-1].result.text) == ("secret", "hidden")


def test_a_stopped_answer_ends_the_turn_and_its_calls_are_not_run():
    turn, _ = a_turn()
    done = MessageDone(said(Text("x"), ONE, stop="tool_use").message, (hook("refused", "postResponse"),))
    commands = turn.handle(done)
    assert kinds(commands) == ["Assistant", "Hook", "message_end", "ToolResult", "TurnEnd", "Fail"]
    assert commands[3].entry.text == NOT_STARTED


def test_a_turn_cancelled_while_its_hooks_are_asked_shows_the_prompt_to_no_model():
    turn, _ = a_listened_turn()
    assert kinds(turn.handle(TurnCancelled())) == ["TurnEnd"]
    assert turn.messages == []
