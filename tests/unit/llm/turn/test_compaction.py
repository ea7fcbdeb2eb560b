"""When a conversation is summarised, what of it, and that what is left is a conversation for every API."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beige.windows import Limits
from services.llm.conversation import (
    Assistant,
    Compaction,
    Context,
    Header,
    Image,
    Prompt,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolStart,
    TurnEnd,
    messages,
    view,
)
from services.llm.turn.compaction import Shortening, context_tokens, estimate, plan, question
from tests.simulator.validity import problem

LIMITS = Limits(window=10_000, threshold=5000)
HEADER = Header(v=1, id="s", agent="a")


def answer(*content, tokens=0):
    usage = {"input_tokens": tokens} if tokens else {}
    return Assistant(model="p/m", content=list(content), stop_reason="end_turn", usage=usage)


def turn(text, reply="ok", tokens=0):
    return [Prompt(text=text), answer(Text(reply), tokens=tokens), TurnEnd(outcome="answered")]


def step(number, output="out", tokens=0):
    """An answer with two calls, and their results."""
    calls = [ToolCall(f"{number}.{n}", "exec", {"command": "ls"}) for n in range(2)]
    entries = [answer(Thinking("hm", "sig"), Text("I look."), *calls, tokens=tokens)]
    for call in calls:
        entries += [
            ToolStart(tool_id=call.id),
            ToolResult(tool_id=call.id, tool="exec", content=[Text(output)]),
        ]
    return entries


def compacted(entries, limits=LIMITS, reason="threshold"):
    asked = plan(entries, limits, reason, 9999)
    assert asked is not None
    entry = Compaction(summary="what was before", messages=asked.messages, reason=reason)
    return [*entries, entry], asked


def texts(shown):
    return [message.text for message in shown]


# --- how large it is --------------------------------------------------------------------------------


def test_what_a_provider_counted_is_believed_and_what_came_since_is_estimated():
    entries = [*turn("one", tokens=700), Prompt(text="x" * 4000)]
    assert context_tokens(entries) == 700 + 1001


def test_without_usage_everything_is_estimated_images_included():
    image = ToolResult(tool_id="a", tool="read", content=[Image("image/png", b"x" * 999_999)])
    entries = [Prompt(text="x" * 4000), answer(ToolCall("a", "read", {"path": "p"})), image]
    assert 3000 + 1001 + 1600 < context_tokens(entries) < 3000 + 1001 + 1600 + 100


def test_after_a_summary_what_was_counted_before_says_nothing():
    entries, _ = compacted([*turn("one", "x" * 4000, tokens=9000), Prompt(text="two")])
    assert context_tokens(entries) < 3500


# --- when -------------------------------------------------------------------------------------------


def test_nothing_happens_below_the_threshold_and_nothing_without_limits():
    entries = [HEADER, *turn("one", "x" * 4000, tokens=4990), Prompt(text="two")]
    assert Shortening(LIMITS).due(entries) is None
    assert Shortening(None).due([*turn("one", "x" * 4000, tokens=99_000), Prompt(text="two")]) is None
    assert Shortening(None).after(entries) is None


def test_above_the_threshold_the_older_turns_are_summarised():
    asked = Shortening(LIMITS).due([HEADER, *turn("one", "x" * 4000, tokens=5001), Prompt(text="two")])
    assert (asked.messages, asked.reason, asked.tokens) == (2, "threshold", 5002)
    assert "USER:\none" in asked.text and "two" not in asked.text


def test_a_provider_that_counts_nonsense_does_not_have_every_call_summarised():
    entries = [*turn("one", tokens=10**9), Prompt(text="two")]
    assert Shortening(LIMITS).due(entries) is None


def test_too_long_is_answered_once_per_turn_and_after_a_failed_summary_not_at_all():
    entries = [*turn("one"), Prompt(text="two")]
    once = Shortening(LIMITS)
    assert once.after(entries) is not None and once.after(entries) is None
    failed = Shortening(LIMITS)
    failed.failed()
    assert failed.after(entries) is None
    assert failed.due([*turn("one", "x" * 4000, tokens=9000), Prompt(text="two")]) is None


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [HEADER],
        [Prompt(text="x" * 90_000)],
        [Prompt(text="x"), TurnEnd(outcome="failed"), Prompt(text="y")],
    ],
    ids=["empty", "header", "one prompt", "prompts without an answer"],
)
@pytest.mark.parametrize("reason", ["threshold", "too_long", "asked"])
def test_where_nothing_was_answered_there_is_nothing_to_summarise(entries, reason):
    assert plan(entries, LIMITS, reason, 0) is None


def test_a_summary_alone_is_not_summarised_again():
    entries, _ = compacted([*turn("one")], reason="asked")
    assert plan(entries, LIMITS, "asked", 0) is None
    assert plan([*entries, Prompt(text="two")], LIMITS, "too_long", 0) is None


# --- what is left -----------------------------------------------------------------------------------


def test_between_turns_the_summary_stands_before_the_latest_ones():
    old, new = turn("old", "x" * 40_000), turn("new", "y" * 400)
    entries, asked = compacted([HEADER, *old, *new, Prompt(text="now")])
    assert asked.messages == 2
    shown = messages(entries)
    assert texts(shown)[0].endswith("what was before")
    assert texts(shown)[1:] == ["new", "y" * 400, "now"]
    assert problem(shown) == ""


def test_in_the_middle_of_a_turn_the_prompt_stays_word_for_word_and_no_result_is_without_its_call():
    entries = [HEADER, *turn("old"), Prompt(text="do it"), Context(), *step(1, "x" * 40_000), *step(2)]
    entries, _ = compacted(entries)
    shown = messages(entries)
    assert texts(shown)[0].endswith("what was before") and texts(shown)[1] == "do it"
    assert [type(message).__name__ for message in shown[2:]] == ["Assistant", "ToolResult", "ToolResult"]
    assert shown[2].tool_calls[0].id == "2.0"
    assert problem(shown) == ""
    later = [*entries, *step(3), answer(Text("done")), TurnEnd(outcome="answered"), Prompt(text="more")]
    assert problem(messages(later)) == "" and texts(messages(later))[1] == "do it"


def test_a_step_too_large_to_be_kept_is_summarised_with_all_others():
    entries, _ = compacted([Prompt(text="do it"), *step(1, "x" * 80_000)])
    assert len(messages(entries)) == 2 and texts(messages(entries))[1] == "do it"
    assert problem(messages(entries)) == ""


def test_the_next_summary_stands_for_the_former_one_too():
    entries, _ = compacted([Prompt(text="do it"), *step(1, "x" * 40_000), *step(2)])
    entries, asked = compacted([*entries, *step(3, "y" * 40_000), *step(4)])
    assert "what was before" in asked.text and "do it" in asked.text
    shown = messages(entries)
    assert texts(shown)[1] == "do it" and shown[2].tool_calls[0].id == "4.0"
    assert problem(shown) == ""


# --- what the model is asked --------------------------------------------------------------------------


def test_the_transcript_says_who_said_what_and_fits():
    older = messages([Prompt(text="look"), *step(1, "z" * 50_000), answer(Text("Found it."))])
    text = question(older, 100_000, "keep the paths")
    for words in ("USER:\nlook", "AGENT:\nI look.", 'CALL exec {"command":"ls"}', "RESULT of exec:\nzzz",
                  "Found it.", "see to this: keep the paths"):  # fmt: skip
        assert words in text
    assert "hm" not in text, "thoughts are not told"
    assert len(question(older * 50, 10_000)) < 10_500


def test_when_the_conversation_was_too_long_the_question_is_much_shorter_than_it():
    entries = [Prompt(text="do it"), *[e for n in range(50) for e in step(n, "x" * 2000)]]
    asked = plan(entries, Limits(2_000_000, 1_800_000), "too_long", 0)
    assert len(asked.text) // 4 < estimate(messages(entries)) // 2


# --- any journal, any point ---------------------------------------------------------------------------

outputs = st.sampled_from(["", "o", "long " * 500])
steps = st.lists(outputs, max_size=4)
turns = st.lists(st.tuples(st.sampled_from(["p", "word " * 400]), steps, st.booleans()), max_size=4)


def journal(shape):
    """Whole turns, each with steps, some of which ended without an answer; and a prompt being answered."""
    entries, number = [HEADER], 0
    for prompt, outputs, ended_well in shape:
        entries.append(Prompt(text=prompt))
        for output in outputs:
            number += 1
            entries += step(number, output)
        if ended_well:
            entries.append(answer(Text("done")))
        entries.append(TurnEnd(outcome="answered" if ended_well else "cancelled"))
    return [*entries, Prompt(text="now"), *step(99)]


def places(entries):
    """Where a model could be asked: every call of the last answer has its result."""
    return [n for n in range(len(entries) + 1) if problem(messages(entries[:n])) == ""]


@given(turns, st.data())
@settings(max_examples=300, deadline=None)
def test_any_compaction_at_any_point_of_any_journal_leaves_a_valid_conversation(shape, data):
    entries = journal(shape)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(places(entries)))
        stands_for = data.draw(st.integers(0, len(entries) + 3))
        entry = Compaction(summary="s", messages=stands_for, reason="asked")
        entries = [*entries[:at], entry, *entries[at:]]
    for end in places(entries):
        assert problem(messages(entries[:end])) == ""
    assert problem(messages(entries)) == ""


@given(turns, st.integers(0, 3000), st.sampled_from(["threshold", "too_long", "asked"]))
@settings(max_examples=300, deadline=None)
def test_what_is_planned_shortens_and_loses_only_what_it_stands_for(shape, keep, reason):
    entries = journal(shape)
    limits = Limits(100_000, max(1, keep * 5))
    asked = plan(entries, limits, reason, 0)
    if asked is None:
        return
    before = [e for e in entries if isinstance(e, Prompt | Assistant | ToolResult)]
    after = view([*entries, Compaction(summary="s", messages=asked.messages, reason=reason)])
    assert after.shown[len(after.shown) - after.fresh :] == before[asked.messages :]
    assert Prompt(text="now") in after.shown and problem(after.shown) == ""
    if reason != "asked":
        kept = before[asked.messages :]
        assert estimate(kept) <= limits.keep or kept == [Prompt(text="now")]
