"""A turn as a person sees it: the answer on one stream, everything else on the other."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from beige.cli.prompt import JsonView, TextView, latest_session, summary
from beige.cli.terminal import Writer
from beige.errors import NotFound
from beige.messages.llm import PromptEvent, PromptResult
from beige.paths import Home

TURN = [
    PromptEvent("notice", text="scripted model"),
    PromptEvent("text_delta", text="I "),
    PromptEvent("text_delta", text="look."),
    PromptEvent("tool_start", tool_id="1", tool="exec", args={"command": "ls\nrm x"}),
    PromptEvent("tool_output", tool_id="1", stream="stdout", text="a\nb"),
    PromptEvent("tool_end", tool_id="1", tool="exec", exit_code=2, duration_ms=1500),
    PromptEvent("tool_start", tool_id="2", tool="read", args={"path": "/x"}),
    PromptEvent(
        "tool_end", tool_id="2", tool="read", text="no such file\nmore", is_error=True, duration_ms=10
    ),
    PromptEvent("text_delta", text="Done."),
    PromptEvent("message_end", model="m"),
]
RESULT = PromptResult("s1", "Done.", "end_turn", "p/m", scripted=True, tool_calls=2)


def test_the_answer_and_what_happened_on_the_way() -> None:
    out, err = io.StringIO(), io.StringIO()
    view = TextView(Writer(out), Writer(err))
    for event in TURN:
        view.event(event)
    view.result(RESULT)
    assert out.getvalue() == "I look.\nDone.\n"
    assert err.getvalue().splitlines() == [
        "[scripted model]",
        "> exec ls ...",
        "  | a",
        "  | b",
        "  done (exit code 2, 1.50 s)",
        "> read /x",
        "  failed: no such file (0.01 s)",
        "[p/m, a script and no language model; 2 tool calls; session s1]",
    ]


def test_a_turn_that_was_cut_short_says_why() -> None:
    out, err = io.StringIO(), io.StringIO()
    TextView(Writer(out), Writer(err)).result(PromptResult("s", "", "max_turns", "p/m"))
    assert err.getvalue() == "[p/m; 0 tool calls, stopped: max_turns; session s]\n"


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    for event in TURN:
        view.event(event)
    view.result(RESULT)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["event"] * len(TURN) + ["result"]
    assert lines[3]["args"] == {"command": "ls\nrm x"}
    assert lines[-1]["scripted"] is True


@pytest.mark.parametrize(
    ("tool", "args", "text"),
    [
        ("exec", {"command": "x" * 200}, "x" * 100 + " ..."),
        ("write", {"path": "/a", "content": "long"}, "/a"),
        ("other", {"a": 1, "b": "c"}, "a=1 b=c"),
        ("exec", {}, ""),
    ],
)
def test_the_summary_is_one_short_line(tool: str, args: dict[str, object], text: str) -> None:
    assert summary(tool, args) == text


def test_the_latest_session_is_the_one_written_last(home: Home) -> None:
    directory: Path = home.sessions / "a"
    with pytest.raises(NotFound, match="no conversation yet"):
        latest_session(home, "a")
    directory.mkdir()
    for age, name in ((1, "new"), (9, "old")):
        (directory / f"{name}.jsonl").write_text("")
        os.utime(directory / f"{name}.jsonl", (1000 - age, 1000 - age))
    assert latest_session(home, "a") == "new"


def shown(**wanted: bool) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    view = TextView(Writer(out), Writer(err), **wanted)
    for event in TURN:
        view.event(event)
    view.result(RESULT)
    return out.getvalue(), err.getvalue()


def test_a_session_that_is_not_verbose_shows_no_tool_call() -> None:
    out, err = shown(verbose=False)
    assert out == "I look.Done.\n"
    assert err.splitlines() == [
        "[scripted model]",
        "[p/m, a script and no language model; 2 tool calls; session s1]",
    ]


def test_without_streaming_an_answer_is_shown_when_it_is_complete_and_a_void_one_never() -> None:
    assert shown(streaming=False)[0] == "I look.Done.\n"
    out = io.StringIO()
    view = TextView(Writer(out), Writer(io.StringIO()), streaming=False)
    view.event(PromptEvent("text_delta", text="half an"))
    view.event(PromptEvent("model_fallback", text="it broke off", model="b"))
    view.event(PromptEvent("text_delta", text="Whole."))
    assert out.getvalue() == ""
    view.event(PromptEvent("message_end", model="b"))
    assert out.getvalue() == "Whole.\n"
