"""What read and patch make of a file's bytes: kind, lines, cuts, replacements. Pure.

The bytes are the agent's and may be anything; the results are bounded whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from beige.errors import Failed, Malformed, TooLarge

READ_LINES = 2000
READ_BYTES = 256 * 1024
MAX_IMAGE = 5 * 1024 * 1024
MAX_PATCHED = 8 * 1024 * 1024
"""Files that patch takes, before and after."""
SNIFF = 8192
LISTED_LINES = 10

_TEXT_CONTROLS = frozenset(b"\t\n\r\f\b\x1b")
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def absolute(path: str) -> str:
    """`path` as the container will see it; relative ones start in the workspace. Never begins with a
    dash, so that no program takes it for an option."""
    if "\0" in path:
        raise Malformed("path: holds a NUL byte")
    return path if path.startswith("/") else f"/workspace/{path}"


def file_path(path: str) -> str:
    """`absolute`, for a file that is going to be written."""
    name = absolute(path).rsplit("/", 1)[1]
    if name in ("", ".", ".."):
        raise Malformed(f"path: {path!r} names a directory")
    return absolute(path)


def media_type(head: bytes) -> str:
    """The image format that the first bytes announce; "" for none that models take."""
    for magic, media in _MAGIC:
        if head.startswith(magic):
            return media
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


def kind_of(head: bytes) -> Literal["text", "image", "binary"]:
    """From the first bytes of a file. Text is UTF-8, or an old 8-bit encoding without controls."""
    if media_type(head):
        return "image"
    sample = head[:SNIFF]
    if b"\0" in sample:
        return "binary"
    if is_utf8(sample):
        return "text"
    return "binary" if any(c < 32 and c not in _TEXT_CONTROLS for c in sample) else "text"


def is_utf8(data: bytes) -> bool:
    """Valid, apart from a last character that may be cut."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.end == len(data) and len(data) > 3
    return True


@dataclass(frozen=True)
class Lines:
    content: bytes
    count: int
    notice: str


def cut_lines(data: bytes, first: int, limit: int, size: int, complete: bool) -> Lines:
    """At most `limit` lines and READ_BYTES of `data`, which starts at line `first` of a file of `size`
    bytes. `complete`: `data` reaches the end of the file."""
    if not data:
        return Lines(b"", 0, "[the file is empty]" if first == 1 else f"[the file ends before line {first}]")
    end = _end_of_line(data, limit)
    if end <= READ_BYTES:
        content = data[:end]
        more = end < len(data) or not complete
        return Lines(content, _count(content), _more(content, first, size) if more else "")
    last_break = data.rfind(b"\n", 0, READ_BYTES) + 1
    if last_break:
        content = data[:last_break]
        return Lines(content, _count(content), _more(content, first, size))
    content = _whole_characters(data[:READ_BYTES])
    text = f"[line {first} is cut after {len(content)} bytes; see the rest with exec (cut -c, head -c)]"
    return Lines(content, 1, text)


def _end_of_line(data: bytes, number: int) -> int:
    """Where line `number` ends, or the end of the data if it has fewer."""
    end = 0
    for _ in range(number):
        found = data.find(b"\n", end)
        if found < 0:
            return len(data)
        end = found + 1
    return end


def _count(content: bytes) -> int:
    return content.count(b"\n") + (not content.endswith(b"\n"))


def _more(content: bytes, first: int, size: int) -> str:
    last = first + _count(content) - 1
    return (
        f"[lines {first} to {last} of a file of {size} bytes; it goes on, read again with offset={last + 1}]"
    )


def _whole_characters(data: bytes) -> bytes:
    return data.decode("utf-8", "ignore").encode() if is_utf8(data) else data


# --- patch -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Patched:
    content: bytes
    replacements: int
    first_line: int


def patched(data: bytes, old: bytes, new: bytes, replace_all: bool) -> Patched:
    """`data` with the one occurrence of `old` (all of them if `replace_all`) replaced, every other byte
    kept. Failed if there is none, or more than one; TooLarge if the result would be."""
    first = data.find(old)
    if first < 0:
        raise Failed(f"the text to replace is not in the file{_hint(data, old)}", executed="no")
    # Overlapping occurrences count too: in "aaa" it is not clear which "aa" is meant.
    if not replace_all and data.find(old, first + 1) >= 0:
        raise Failed(_ambiguous(data, old), executed="no")
    times = data.count(old) if replace_all else 1
    # Before it is built: a million replacements of one byte would not fit into memory.
    if len(data) + times * (len(new) - len(old)) > MAX_PATCHED:
        raise TooLarge(f"the patched file would be over {MAX_PATCHED} bytes")
    return Patched(data.replace(old, new, times), times, data.count(b"\n", 0, first) + 1)


def _ambiguous(data: bytes, old: bytes) -> str:
    lines: list[int] = []
    count, position, line, counted = 0, data.find(old), 1, 0
    while position >= 0:
        count += 1
        if len(lines) < LISTED_LINES:
            line += data.count(b"\n", counted, position)
            counted = position
            lines.append(line)
        position = data.find(old, position + 1)
    shown = ", ".join(map(str, lines)) + (", ..." if count > len(lines) else "")
    return (
        f"the text to replace is there {count} times (lines {shown}): add lines around it until it is "
        "unique, or replace all"
    )


def _hint(data: bytes, old: bytes) -> str:
    if b"\r\n" not in old and old.replace(b"\n", b"\r\n") in data:
        return " as given, but with CRLF line ends"
    stripped = old.strip()
    if stripped and stripped != old and stripped in data:
        return " as given, but without the white space around it"
    return ""
