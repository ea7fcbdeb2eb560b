"""What reaches a terminal, and what reaches a pipe."""

from __future__ import annotations

import io
import json

import pytest

from beige.cli.terminal import Progress, Writer, duration, emit, safe, table


class Screen(io.TextIOWrapper):
    """A terminal that remembers what was written to it."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        self.flush()
        value = self.buffer.getvalue()  # type: ignore[attr-defined]
        assert isinstance(value, bytes)
        return value.decode()


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        pytest.param("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H", id="clear-screen"),
        pytest.param("\x1b]52;c;cm0gLXJm\x07", "\\x1b]52;c;cm0gLXJm\\x07", id="set-clipboard"),
        pytest.param("ok\rDENIED", "ok\\x0dDENIED", id="overwrite-line"),
        pytest.param("a\x08b", "a\\x08b", id="backspace"),
        pytest.param("\x9b31m", "\\x9b31m", id="c1-csi"),
        pytest.param("\u202egnp.exe", "\\u202egnp.exe", id="right-to-left"),
        pytest.param("a\r\nb\tc\n", "a\nb\tc\n", id="plain-lines"),
        pytest.param("Zürich 東京", "Zürich 東京", id="unicode"),
    ],
)
def test_an_agents_text_cannot_drive_the_terminal(hostile: str, shown: str) -> None:
    assert safe(hostile) == shown
    screen = Screen(is_terminal=True)
    Writer(screen).write(hostile)
    Writer(screen).bytes(hostile.encode())
    assert screen.text == shown * 2


def test_a_pipe_gets_every_byte_as_it_is() -> None:
    pipe = Screen(is_terminal=False)
    Writer(pipe).bytes(b"\x1b[1m\xff\x00\r\n")
    assert pipe.buffer.getvalue() == b"\x1b[1m\xff\x00\r\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("is_terminal", "environ", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_only_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, environ: dict[str, str], coloured: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    screen = Screen(is_terminal)
    Writer(screen).styled("x", "red")
    assert screen.text == ("\x1b[31mx\x1b[0m\n" if coloured else "x\n")


def test_progress_rewrites_one_line_on_a_terminal_and_adds_lines_elsewhere() -> None:
    screen, pipe = Screen(is_terminal=True), Screen(is_terminal=False)
    for stream in (screen, pipe):
        progress = Progress(stream)
        for text in ("1 of 2", "1 of 2", "2 of 2"):
            progress(text)
        progress.done()
    assert screen.text == "\r\x1b[K1 of 2\r\x1b[K2 of 2\r\x1b[K"
    assert pipe.text == "1 of 2\n2 of 2\n"


def test_a_table_is_aligned_and_a_cell_stays_in_its_line() -> None:
    assert table([["A", "LONG"], ["one\ntwo", "\x1b"]]) == "A        LONG\none two  \\x1b"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59, "59s"), (75, "1m15s"), (3700, "1h01m")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_json_for_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"a": ["ü"]})
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and json.loads(out) == {"a": ["ü"]}
