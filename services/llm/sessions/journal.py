"""Decides what a session's file says, and how to repair it after a crash. Bytes in, entries out.

{"type":"session","v":1,"id":"20261129-161500-1a2b3c4d","agent":"travel","ts":"..."}
{"type":"prompt","text":"...","ts":"..."}
{"type":"assistant","model":"anthropic/...","content":[...],"stop_reason":"tool_use", ...}
{"type":"tool_start","tool_id":"..."}  {"type":"tool_result", ...}  {"type":"turn_end", ...}
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from beige.errors import Failed
from services.llm.conversation import (
    FORMAT,
    AnyEntry,
    Header,
    Notice,
    TurnEnd,
    close_calls,
    decode_entry,
    encode_entry,
    unfinished,
)


@dataclass(frozen=True)
class Journal:
    entries: list[AnyEntry]
    keep: int
    """Bytes of the file that are whole lines; what follows is a torn write, to be cut off."""


def encode_line(entry: AnyEntry) -> bytes:
    """One line. Newlines inside texts are escaped by JSON."""
    return encode_entry(entry) + b"\n"


def read_journal(data: bytes, agent: str, session: str) -> Journal:
    """The entries of a file. Only its end can be torn by a crash: bad bytes anywhere else, or a file
    of another session or a newer format, are `Failed`."""
    lines = data.split(b"\n")
    lines.pop()  # after the last newline: empty, or torn
    entries = [_decode(line) for line in lines]
    while entries and entries[-1] is None:
        entries.pop()
    whole: list[AnyEntry] = []
    for number, entry in enumerate(entries, start=1):
        if entry is None:
            raise Failed(f"session {session!r}: line {number} of its file is not readable", executed="no")
        whole.append(entry)
    if lines and not whole:  # not torn but foreign, e.g. of a newer version: nothing of it is cut off
        raise Failed(f"session {session!r}: its file is not readable", executed="no")
    _check_header(whole, agent, session)
    return Journal(whole, sum(len(line) + 1 for line in lines[: len(whole)]))


def repairs(journal: Journal, size: int) -> list[AnyEntry]:
    """What to append to a file of `size` bytes so that the conversation is whole again: a notice of
    what was cut off, a result for each call without one, the end of the turn."""
    added: list[AnyEntry] = []
    if size > journal.keep:
        added.append(Notice(text=f"{size - journal.keep} bytes of a torn write were cut off here"))
    if unfinished(journal.entries):
        added += close_calls(journal.entries)
        added.append(TurnEnd(outcome="interrupted", error="the process serving this turn ended"))
    return added


def _decode(line: bytes) -> AnyEntry | None:
    try:
        return decode_entry(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _check_header(entries: list[AnyEntry], agent: str, session: str) -> None:
    if not entries:
        return
    header = entries[0]
    if not isinstance(header, Header) or (header.agent, header.id) != (agent, session):
        raise Failed(f"session {session!r}: its file is not that of this session", executed="no")
    if header.v > FORMAT:
        raise Failed(
            f"session {session!r}: its file has format {header.v}, newer than {FORMAT}", executed="no"
        )
