"""Kinds, cuts and replacements of bytes that may be anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import Failed, Malformed, TooLarge
from services.sandbox.content import (
    MAX_PATCHED,
    READ_BYTES,
    absolute,
    cut_lines,
    file_path,
    kind_of,
    media_type,
    patched,
)

PATHS = [
    ("notes.txt", "/workspace/notes.txt"),
    ("./a/../b", "/workspace/./a/../b"),
    ("/etc/passwd", "/etc/passwd"),
    ("-rf", "/workspace/-rf"),
    ("--help", "/workspace/--help"),
    ("a b\n$(id)'\"", "/workspace/a b\n$(id)'\""),
    ("~/x", "/workspace/~/x"),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_paths_start_in_the_workspace_and_never_with_a_dash(path: str, expected: str) -> None:
    assert absolute(path) == expected


def test_a_nul_in_a_path_is_malformed() -> None:
    with pytest.raises(Malformed, match="path"):
        absolute("a\0b")


@pytest.mark.parametrize("path", ["dir/", ".", "..", "a/..", "/"])
def test_a_directory_can_not_be_written(path: str) -> None:
    with pytest.raises(Malformed, match="directory"):
        file_path(path)


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
KINDS = [
    pytest.param(PNG, "image", "image/png", id="png"),
    pytest.param(b"\xff\xd8\xff\xe0\0\x10JFIF", "image", "image/jpeg", id="jpeg"),
    pytest.param(b"GIF89a\x01\0", "image", "image/gif", id="gif"),
    pytest.param(b"RIFF\x24\0\0\0WEBPVP8 ", "image", "image/webp", id="webp"),
    pytest.param(b"RIFF\x24\0\0\0WAVEfmt ", "binary", "", id="wav"),
    pytest.param(b"<svg/>", "text", "", id="svg"),
    pytest.param(b"\x7fELF\x02\x01\x01\0", "binary", "", id="elf"),
    pytest.param(b"", "text", "", id="empty"),
    pytest.param("größe\n".encode(), "text", "", id="utf-8"),
    pytest.param("größe\n".encode("latin-1"), "text", "", id="latin-1"),
    pytest.param(b"\x80\x01\x02\xff", "binary", "", id="controls"),
    pytest.param(b"a" * 8191 + "ü".encode(), "text", "", id="a character over the edge of the sample"),
]


@pytest.mark.parametrize(("head", "kind", "media"), KINDS)
def test_the_first_bytes_tell_the_kind(head: bytes, kind: str, media: str) -> None:
    assert (kind_of(head), media_type(head)) == (kind, media)


TEN = b"".join(b"%d\n" % n for n in range(1, 11))
CUTS = [
    pytest.param(TEN, 1, 100, True, TEN, 10, "", id="all"),
    pytest.param(TEN, 1, 10, True, TEN, 10, "", id="exactly"),
    pytest.param(TEN, 1, 3, True, b"1\n2\n3\n", 3, "offset=4", id="fewer"),
    pytest.param(b"8\n9\n10\n", 8, 2, True, b"8\n9\n", 2, "lines 8 to 9", id="from the middle"),
    pytest.param(b"x\ny", 1, 5, True, b"x\ny", 2, "", id="no newline at the end"),
    pytest.param(b"x\ny", 1, 5, False, b"x\ny", 2, "goes on", id="the file goes on"),
    pytest.param(b"", 1, 5, True, b"", 0, "empty", id="empty"),
    pytest.param(b"", 7, 5, True, b"", 0, "before line 7", id="beyond the end"),
    pytest.param(b"\n\n", 1, 5, True, b"\n\n", 2, "", id="empty lines"),
    pytest.param(b"a\r\nb\r\n", 1, 1, True, b"a\r\n", 1, "offset=2", id="CRLF stays"),
]


@pytest.mark.parametrize(("data", "first", "limit", "complete", "content", "count", "notice"), CUTS)
def test_lines_are_cut_with_a_notice(data, first, limit, complete, content, count, notice) -> None:
    lines = cut_lines(data, first, limit, 99, complete)
    assert (lines.content, lines.count) == (content, count)
    assert notice in lines.notice
    assert bool(notice) == bool(lines.notice)


def test_bytes_are_cut_at_a_line() -> None:
    data = b"x" * 99 + b"\n"
    lines = cut_lines(data * 4000, 1, 10_000, 400_000, True)
    assert len(lines.content) <= READ_BYTES
    assert lines.content.endswith(b"\n")
    assert f"offset={lines.count + 1}" in lines.notice


def test_a_line_longer_than_everything_is_cut_between_characters() -> None:
    lines = cut_lines(b"a" + "ü".encode() * READ_BYTES, 1, 10, 1 + 2 * READ_BYTES, True)
    assert lines.content.decode().endswith("ü")
    assert READ_BYTES - 2 <= len(lines.content) <= READ_BYTES
    assert "cut" in lines.notice


@given(st.binary(max_size=500), st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_what_is_cut_is_a_prefix(data: bytes, first: int, limit: int, complete: bool) -> None:
    lines = cut_lines(data, first, limit, 1000, complete)
    assert data.startswith(lines.content)
    assert lines.content.count(b"\n") <= limit
    assert (lines.content == data and complete) or lines.notice


def test_one_occurrence_is_replaced_and_every_other_byte_kept() -> None:
    data = b"\xff\xfe one\r\ntwo\r\n\0three"
    result = patched(data, b"two", b"2", False)
    assert result.content == b"\xff\xfe one\r\n2\r\n\0three"
    assert (result.replacements, result.first_line) == (1, 2)


@given(st.binary(min_size=1, max_size=5), st.binary(max_size=5), st.binary(max_size=50), st.booleans())
def test_patch_agrees_with_bytes_replace(old: bytes, new: bytes, data: bytes, everywhere: bool) -> None:
    try:
        result = patched(data, old, new, everywhere)
    except Failed:
        return
    assert result.content == data.replace(old, new)


def test_text_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Failed, match="not in the file"):
        patched(b"one", b"two", b"", False)


def test_more_than_one_is_ambiguous_and_the_lines_are_named() -> None:
    with pytest.raises(Failed, match=r"3 times \(lines 1, 3, 3\)"):
        patched(b"x\ny\nx x\n", b"x", b"z", False)


def test_overlapping_occurrences_are_ambiguous() -> None:
    with pytest.raises(Failed, match="2 times"):
        patched(b"aaa", b"aa", b"b", False)


def test_the_list_of_lines_is_bounded() -> None:
    with pytest.raises(Failed) as caught:
        patched(b"x\n" * 5000, b"x", b"z", False)
    assert "5000 times" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_all_replaces_all() -> None:
    result = patched(b"x\ny\nx x\n", b"x", b"zz", True)
    assert result.content == b"zz\ny\nzz zz\n"
    assert (result.replacements, result.first_line) == (3, 1)


def test_a_patch_that_blows_a_file_up_is_refused_before_it_is_built() -> None:
    with pytest.raises(TooLarge):
        patched(b"x" * MAX_PATCHED, b"x", b"y" * 256 * 1024, True)


def test_hints_for_the_commonest_mistakes() -> None:
    with pytest.raises(Failed, match="CRLF"):
        patched(b"a\r\nb\r\n", b"a\nb", b"", False)
    with pytest.raises(Failed, match="white space"):
        patched(b"  foo()\n", b"    foo()\n\n", b"", False)
