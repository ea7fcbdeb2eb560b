"""What the shell holds back of a command's output, and what it believes about the directory."""

from __future__ import annotations

import pytest

from beige.cli.sandbox_shell import MAX_DIRECTORY, Tail

MARK = "[0123456789abcdef]"


def shown(data: bytes, size: int) -> tuple[bytes, str]:
    """Arriving in pieces of `size` bytes."""
    tail = Tail(MARK)
    pieces = [tail.take(data[start : start + size]) for start in range(0, len(data), size)]
    return b"".join(pieces) + tail.rest(), tail.directory


CASES = [
    pytest.param("[0123456789abcdef]/tmp\n", b"", "/tmp", id="no output"),
    pytest.param("out\n[0123456789abcdef]/workspace/a b\n", b"out\n", "/workspace/a b", id="output"),
    pytest.param("out[0123456789abcdef]/\n", b"out", "/", id="no newline at its end"),
    pytest.param("just output", b"just output", "", id="the shell was replaced by exec"),
    pytest.param("", b"", "", id="nothing"),
    pytest.param("a[0123456789abcdef]/x\nb[0123456789abcdef]/y\n", b"a[0123456789abcdef]/x\nb", "/y",
                 id="the last mark counts"),
    pytest.param("[0123456789abcdef]relative\n", b"", "", id="no absolute path"),
    pytest.param("[0123456789abcdef]/a\0b\n", b"", "", id="a NUL"),
    pytest.param("x[0123456789abcde", b"x[0123456789abcde", "", id="half a mark"),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(("text", "output", "directory"), CASES)
def test_output_is_shown_and_the_directory_taken(text: str, output: bytes, directory: str, size: int) -> None:
    assert shown(text.encode(), size) == (output, directory)


def test_little_is_held_back_whatever_is_printed() -> None:
    """A command that prints the mark and then goes on for ever fills no memory."""
    tail = Tail(MARK)
    data = MARK.encode() + b"x" * 10_000
    seen = b"".join(tail.take(data) for _ in range(100))
    assert len(seen) > 100 * len(data) - MAX_DIRECTORY - 2 * len(data)
    assert seen + tail.rest() == data * 100
