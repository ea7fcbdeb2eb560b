"""The status line and the history of prompts."""

import pytest
from rich.cells import cell_len

from beige.tui.events import TurnEvent
from beige.tui.history import History
from beige.tui.status import Status, short


def full():
    status = Status(connection="connected")
    status.session_is("assistant", "20261129-161500-1a2b3c4d", "")
    status.chosen("anthropic/claude-haiku-4-5", 200_000)
    status.began()
    usage = {"input_tokens": 1200, "cache_read_tokens": 11_000, "output_tokens": 300, "reasoning_tokens": 100}
    status.saw(TurnEvent("message_end", model="anthropic/claude-haiku-4-5", usage=usage, cost=0.01234))
    return status


def test_everything_is_there_when_there_is_room():
    assert full().line(200).split(" · ") == [
        "working", "assistant", "anthropic/claude-haiku-4-5", "context 12.5k/200.0k", "in 12.2k out 300",
        "$0.0123",        "20261129-161500-1a2b3c4d",
    ]  # fmt: skip


@pytest.mark.parametrize("width", range(1, 130))
def test_it_never_takes_more_than_the_terminal_has_and_state_goes_last(width):
    line = full().line(width)
    assert cell_len(line) <= width
    assert "working".startswith(line) or line.startswith("working")


def test_at_80_columns_the_session_and_tokens_go_first():
    line = full().line(80)
    assert "assistant" in line and "claude-haiku" in line and "context 12.5k" in line
    assert "20261129" not in line and "out 300" not in line


def test_a_fallback_is_named_with_the_model_it_stands_in_for_until_the_next_turn():
    status = full()
    status.saw(TurnEvent("model_fallback", text="overloaded", model="zai/glm-5"))
    assert "zai/glm-5 (for anthropic/claude-haiku-4-5)" in status.line(200)
    status.saw(TurnEvent("model_fallback", text="again", model="zai/glm-5"))
    assert "zai/glm-5 (for anthropic/claude-haiku-4-5)" in status.line(200)
    status.ended()
    status.began()
    assert "glm" not in status.line(200)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("waiting: session s1 is busy with 2 earlier prompt(s)", "2 ahead"),
        ("waiting behind 3 other calls for a free slot of provider 'two' (concurrency)", "3 ahead"),
        ("waiting for a free slot of provider 'two' (concurrency)", "waiting"),
        ("waiting: another llm process is serving this session", "waiting"),
    ],
)
def test_the_place_in_line_is_told_until_the_turn_goes_on(text, state):
    status = full()
    status.saw(TurnEvent("notice", text=text))
    assert status.line(200).startswith(f"{state} · ")
    status.saw(TurnEvent("text_delta", text="x"))
    assert status.line(200).startswith("working · ")


def test_a_lost_connection_goes_before_everything_else():
    status = full()
    status.connection = "reconnecting"
    assert status.line(80).startswith("reconnecting · ")


def test_another_session_is_counted_anew():
    status = full()
    status.session_is("other", "s2", "")
    status.ended()
    assert status.line(200) == "ready · other · s2"


def test_costs_add_up_and_an_unknown_price_shows_nothing():
    status = full()
    status.saw(TurnEvent("message_end", cost=0.00006))
    assert "$0.0124" in status.line(200)
    assert "$" not in Status(connection="connected", agent="a").line(200)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12.3k"), (2_500_000, "2.5M")]
)
def test_counts_are_short(count, text):
    assert short(count) == text


def test_history_walks_back_and_forth_and_keeps_the_draft():
    history = History()
    for text in ("one", "two", "two", "three"):
        history.add(text)
    assert [history.up("draft"), history.up("x"), history.up("x"), history.up("x")] == [
        "three", "two", "one", None,
    ]  # fmt: skip
    assert [history.down(), history.down(), history.down(), history.down()] == ["two", "three", "draft", None]


def test_another_sessions_history_replaces_this_ones():
    history = History()
    history.add("one")
    history.up("")
    history.replace(["a", "b"])
    assert history.up("") == "b"
    history.replace([])
    assert history.up("") is None
