"""The audit log as a format: one record, its line, and how the files of a log are found and read.

    logs/audit.jsonl                               the current file
    logs/audit-20260305T120000.000Z.jsonl          rotated files, oldest first by name

Written by `services/audit` alone; read by it at start and by `beige audit`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from beige.unseen import escape_json

MAX_LINE = 64 * 1024
"""Bytes of one line with its newline. Longer ones (not ours) are skipped by readers."""
_BLOCK = 256 * 1024
_ROTATED = re.compile(r"audit-\d{8}T\d{6}\.\d{3}Z\.jsonl\Z")


class Record(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One line. The names down to `error` are the seed's; a record repeats what names its call, so that
    each line stands alone."""

    ts: str
    """ISO 8601, UTC, milliseconds."""
    agent: str
    type: Literal["core_tool", "tool", "egress", "model_call", "hook"]
    """`core_tool`: read, write, patch or exec of a model or operator. `tool`: a plugin's, from inside.
    `egress`: a connection from inside to the internet; its arguments are `host:port` and the method.
    `model_call`: one attempt at a model's answer. `hook`: a plugin was shown a prompt or an answer; its
    argument is the plugin, `tool` the hook."""
    tool: str
    args: list[str]
    decision: Literal["allowed", "denied"]
    target: str = ""
    """Where a plugin's tool executes, `gateway` or `sandbox`; only for type `tool`."""
    duration_ms: float | None = None
    """Time in the executor; when it was lost, time since the start was recorded."""
    exit_code: int | None = None
    output_bytes: int | None = None
    error: str = ""
    phase: Literal["started", "finished"]
    id: str
    """The call's name on the bus; one started and one finished record share it."""
    parent: str = ""
    """`id` of the call that caused this one."""
    session: str = ""
    channel: str = ""
    src: str = ""
    """The bus user who made the call: `llm/0`, `bridge/0`, `cli/0`."""
    input_bytes: int | None = None
    """Size of content sent along (a write, an exec's stdin), which is not in the log itself. Egress:
    bytes that went out (`output_bytes` came in), known at its end."""
    rule: str = ""
    """Egress: the rule that allowed it, or `learning`."""
    kind: str = ""
    """Of a model call: what went wrong. Of a hook: `unchanged`, `replaced`, `refused` or `told`."""
    status: int | None = None
    """The provider's HTTP status, if the call failed."""
    usage: dict[str, int] = {}
    """Tokens of a model call."""
    cost_usd: float | None = None
    """What was counted towards the budgets; absent if the model has no price."""
    text_digest: str = ""
    """Of a hook: first 32 hex digits of the SHA-256 of the text it got (started), or replaced it by
    (finished). `input_bytes` and `output_bytes` are their sizes; the texts are in the session's file."""
    digest: str = ""
    """First 32 hex digits of the request's SHA-256 (`beige.seals`); on the record made before execution."""


_decode = msgspec.json.Decoder(Record)


def encode_line(record: Record) -> bytes:
    """The record's line. Pure: whatever the strings hold, it is one line of JSON.

    C1 controls, line separators, bidi overrides and unseen characters are escaped too, which JSON doesn't ask
    for: an agent could otherwise rewrite what an operator sees of the log in a terminal
    (`test_line_holds_no_terminal_controls`).
    """
    return escape_json(msgspec.json.encode(record)) + b"\n"


def decode_line(line: bytes) -> Record | None:
    """The record of one line, or None if it is not one (a torn or foreign line)."""
    try:
        return _decode.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def timestamp(when: datetime | None = None) -> str:
    return (when or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rotated_name(when: datetime) -> str:
    return f"audit-{when.strftime('%Y%m%dT%H%M%S')}.{when.microsecond // 1000:03d}Z.jsonl"


def files(current: Path) -> list[Path]:
    """The files of the log that exist, oldest first; the current one last."""
    rotated = sorted(p for p in current.parent.glob("audit-*.jsonl") if _ROTATED.match(p.name))
    return [*rotated, current] if current.exists() else rotated


def lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Complete lines, without their newline, from byte `start`. An unfinished last line is left out."""
    with path.open("rb") as file:
        file.seek(start)
        while line := file.readline(MAX_LINE):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == MAX_LINE:
                _skip_line(file)


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
        pass


def lines_backwards(path: Path, end: int | None = None) -> Iterator[bytes]:
    """Complete lines that hold something, the last one first, in bounded memory; of the file as it was
    when it had `end` bytes."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        position = position if end is None else min(position, end)
        tail = b""
        torn = True
        while position:
            size = min(_BLOCK, position)
            position -= size
            file.seek(position)
            first, *rest = (file.read(size) + tail).split(b"\n")
            for line in reversed(rest):
                if torn:
                    torn = False
                elif 0 < len(line) < MAX_LINE:
                    yield line
            tail = first[:MAX_LINE]
        if 0 < len(tail) < MAX_LINE and not torn:
            yield tail


def records_backwards(current: Path, limit_bytes: int) -> Iterator[Record]:
    """Records of the log, the newest first, from about the last `limit_bytes` of its files."""
    for path in reversed(files(current)):
        for line in lines_backwards(path):
            limit_bytes -= len(line) + 1
            if limit_bytes < 0:
                return
            if record := decode_line(line):
                yield record
