"""What a plugin prints reaches the log line by line, cut and bounded in rate."""

from __future__ import annotations

from beige.pluginhost.prints import LINES_PER_S, MAX_LINE, Prints, Throttle


def test_lines_are_joined_across_reads_and_blank_ones_dropped() -> None:
    prints = Prints(Throttle())
    assert prints.feed(b"one\n\n  \ntw", 0.0) == ["one"]
    assert prints.feed(b"o\nrest", 0.0) == ["two"]
    assert prints.end() == ["rest"]
    assert prints.end() == []


def test_control_characters_and_bad_bytes_cannot_forge_log_lines() -> None:
    assert Prints(Throttle()).feed(b"a\x1b[31m\r\xffb\n", 0.0) == ["a [31m \N{REPLACEMENT CHARACTER}b"]


def test_a_line_without_end_is_cut_not_collected() -> None:
    prints = Prints(Throttle())
    for _ in range(100):
        assert prints.feed(b"x" * 10_000, 0.0) == []
    assert prints.end() == ["x" * MAX_LINE]


def test_a_flood_is_counted_not_kept() -> None:
    throttle = Throttle()
    prints = Prints(throttle)
    first = prints.feed(b"x\n" * 10_000, 1.0)
    assert 0 < len(first) < 1000
    assert throttle.take_dropped() == 10_000 - len(first)
    assert throttle.take_dropped() == 0
    assert len(prints.feed(b"x\n" * 10_000, 2.0)) == LINES_PER_S
