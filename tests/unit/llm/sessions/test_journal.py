import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import Failed
from services.llm.conversation import (
    INTERRUPTED,
    NOT_STARTED,
    Assistant,
    Context,
    Header,
    Image,
    Notice,
    Prompt,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolStart,
    TurnEnd,
)
from services.llm.sessions.journal import encode_line, read_journal, repairs

HEADER = Header(v=1, id="s1", agent="travel")
ASKED = Assistant(
    model="p/m",
    content=[
        Thinking("hm", "sig"),
        Text("zwei\nZeilen ✓"),
        ToolCall("a", "exec", {"command": "ls"}),
        ToolCall("b", "read"),
    ],
    stop_reason="tool_use",
    usage={"input_tokens": 1},
)
RESULT = ToolResult(
    tool_id="a", tool="exec", content=[Text("ok"), Image("image/png", b"\x00\xff")], exit_code=0
)
WHOLE = [HEADER, Context(agents_md="# x"), Prompt(text="do it"), ASKED, ToolStart(tool_id="a"), RESULT,
         ToolStart(tool_id="b"), ToolResult(tool_id="b", tool="read", content=[], is_error=True),
         TurnEnd(outcome="answered"), Notice(text="n")]  # fmt: skip


def written(entries):
    return b"".join(encode_line(entry) for entry in entries)


def test_everything_written_is_read_again():
    data = written(WHOLE)
    journal = read_journal(data, "travel", "s1")
    assert journal.entries == WHOLE
    assert journal.keep == len(data)
    assert repairs(journal, len(data)) == []


@given(st.integers(min_value=0, max_value=len(written(WHOLE))))
def test_a_file_cut_anywhere_keeps_its_whole_lines(length):
    data = written(WHOLE)[:length]
    journal = read_journal(data, "travel", "s1")
    assert journal.entries == WHOLE[: data.count(b"\n")]
    added = repairs(journal, len(data))
    assert isinstance(added[0], Notice) if length > journal.keep else True
    repaired = written([*(journal.entries or [HEADER]), *added])
    assert repairs(read_journal(repaired, "travel", "s1"), len(repaired)) == []


@given(st.binary(max_size=200))
def test_rubbish_is_refused_or_empty_and_never_crashes(data):
    try:
        journal = read_journal(data, "travel", "s1")
    except Failed:
        return
    assert journal.entries == [] and journal.keep == 0


@pytest.mark.parametrize("tail", [b"\x00" * 4096, b"\x00" * 10 + b"\n" + b"\xff\n", b'{"type":"prom'])
def test_a_torn_tail_is_cut_off_with_a_notice(tail):
    data = written(WHOLE) + tail
    journal = read_journal(data, "travel", "s1")
    assert journal.entries == WHOLE
    assert repairs(journal, len(data)) == [
        Notice(text=f"{len(tail)} bytes of a torn write were cut off here")
    ]


def test_a_bad_line_in_the_middle_is_not_passed_over():
    data = written(WHOLE[:3]) + b"garbage\n" + written(WHOLE[3:])
    with pytest.raises(Failed, match="line 4"):
        read_journal(data, "travel", "s1")


@pytest.mark.parametrize(
    ("agent", "session"), [("other", "s1"), ("travel", "s2")], ids=["another agent's", "another session's"]
)
def test_a_file_of_another_session_is_refused(agent, session):
    with pytest.raises(Failed, match="not that of this session"):
        read_journal(written(WHOLE), agent, session)


def test_a_file_without_one_readable_line_is_refused_and_not_emptied():
    with pytest.raises(Failed, match="not readable"):
        read_journal(b'{"type":"session","v":2,"new_field":1}\n', "travel", "s1")


def test_a_newer_format_is_refused():
    with pytest.raises(Failed, match="format 2"):
        read_journal(written([Header(v=2, id="s1", agent="travel")]), "travel", "s1")


def test_an_unfinished_turn_gets_a_result_per_call_and_an_end():
    entries = [HEADER, Prompt(text="x"), ASKED, ToolStart(tool_id="a")]
    data = written(entries)
    result_a, result_b, end = repairs(read_journal(data, "travel", "s1"), len(data))
    assert (result_a.tool_id, result_a.text) == ("a", INTERRUPTED)
    assert (result_b.tool_id, result_b.text) == ("b", NOT_STARTED)
    assert end.outcome == "interrupted"


def test_finished_results_of_an_unfinished_turn_are_kept():
    entries = [HEADER, Prompt(text="x"), ASKED, ToolStart(tool_id="a"), RESULT]
    data = written(entries)
    assert [entry.tool_id for entry in repairs(read_journal(data, "travel", "s1"), len(data))[:-1]] == ["b"]
