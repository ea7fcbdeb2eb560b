"""`beige audit tail|query`: reads the audit log's files; needs no running service."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from beige.cli import new_app

if TYPE_CHECKING:
    from beige.auditlog import Record
    from beige.cli.audit_query import Query

app = new_app(help="Read the audit log.")

POLL_S = 0.2
MAX_TAIL = 1_000_000
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for jq.")]


@app.command()
def tail(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is written.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, max=MAX_TAIL)] = 20,
    json_output: Json = False,
) -> None:
    """Show the newest records.

    \b
    Example:
      beige audit tail -f
    """
    log = _log()
    # Opened before anything is shown: what is written, or rotated away, from here on is followed.
    file = log.open("rb") if log.exists() else None
    size = file.seek(0, os.SEEK_END) if file else 0
    _print(_newest(log, lines, size), json_output)
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            _print(_records(_followed(log, file)), json_output, table=False)
    elif file:
        file.close()


@app.command()
def query(
    agent: Annotated[str, typer.Option(help="Only this agent.")] = "",
    tool: Annotated[
        str, typer.Option(help="Only this tool: exec, read, write, patch, model, or a plugin's.")
    ] = "",
    type: Annotated[str, typer.Option(help="core_tool, tool, egress, model_call or hook.")] = "",
    decision: Annotated[str, typer.Option(help="allowed or denied.")] = "",
    session: Annotated[str, typer.Option(help="Only this session.")] = "",
    channel: Annotated[
        str,
        typer.Option(
            help="Only what came through it: cli, http, http:TOKEN for one token, a channel's name."
        ),
    ] = "",
    id: Annotated[str, typer.Option(help="Only this call.")] = "",
    parent: Annotated[str, typer.Option(help="Only calls that this call caused.")] = "",
    since: Annotated[str, typer.Option(help="From here on: 15m, 2h, 7d ago, or ISO 8601.")] = "",
    until: Annotated[str, typer.Option(help="Before this: 15m, 2h, 7d ago, or ISO 8601.")] = "",
    phase: Annotated[str, typer.Option(help="started or finished.")] = "",
    errors: Annotated[bool, typer.Option("--errors", help="Only denials and failures.")] = False,
    json_output: Json = False,
    tree: Annotated[bool, typer.Option("--tree", help="Show calls under the call that caused them.")] = False,
) -> None:
    """Find records, oldest first. Exit code 1 if there are none.

    \b
    Examples:
      beige audit query --agent travel --since 1h --tree
      beige audit query --errors --json | jq .error
      beige audit query --channel http:ci --since 7d
      beige audit query --type model_call --since 1d --phase finished
      beige audit query --type hook --session trip-1
    """
    from datetime import datetime

    from beige.cli.audit_query import Query, moment
    from beige.errors import Malformed

    _one_of("--type", type, ("core_tool", "tool", "egress", "model_call", "hook"))
    _one_of("--decision", decision, ("allowed", "denied"))
    _one_of("--phase", phase, ("started", "finished"))
    now = datetime.now().astimezone()
    try:
        begin, end = moment(since, now), moment(until, now)
    except Malformed as error:
        raise typer.BadParameter(str(error)) from None
    asked = Query(agent, tool, type, decision, session, channel, id, parent, phase, begin, end, errors)
    found = _search(_log(), asked)
    shown = _print_tree(found) if tree and not json_output else _print(found, json_output)
    if not shown:
        raise typer.Exit(1)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value and value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=option)


def _log() -> Path:
    from beige.paths import Home

    return Home.find().audit_log


def _files(log: Path) -> list[Path]:
    from beige.auditlog import files

    return files(log)


def _search(log: Path, asked: Query) -> Iterator[Record]:
    from beige.auditlog import lines

    for path in _files(log):
        for record in _records(lines(path)):
            if asked.matches(record):
                yield record


def _records(found: Iterable[bytes]) -> Iterator[Record]:
    from beige.auditlog import decode_line

    for line in found:
        if record := decode_line(line):
            yield record


def _print(records: Iterable[Record], json_output: bool, *, table: bool = True) -> int:
    """Print records as they come, or as one table where a person looks. How many there were."""
    from beige.auditlog import encode_line
    from beige.cli.audit_query import row

    if not json_output and table and sys.stdout.isatty():
        return _print_table(records)
    count = 0
    for record in records:
        count += 1
        text = encode_line(record).decode().rstrip("\n") if json_output else "  ".join(row(record))
        print(text, flush=not table)
    sys.stdout.flush()  # who follows through a pipe sees what there was, too
    return count


def _print_table(records: Iterable[Record]) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from beige.cli.audit_query import COLUMNS, is_error, row

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, no_wrap=name in ("time", "id", "phase"), overflow="ellipsis")
    for record in records:
        style = "red" if record.phase == "finished" and is_error(record) else ""
        table.add_row(*(Text(cell, style=style) for cell in row(record)))
    if table.row_count:
        Console().print(table)
    return table.row_count


def _print_tree(records: Iterable[Record]) -> int:
    import shutil

    from beige.cli.audit_query import tree, tree_lines

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    count = 0
    for line in tree_lines(tree(records), width):
        print(line)
        count += 1
    return count


def _newest(log: Path, count: int, size: int) -> Iterable[Record]:
    """The last `count` records, oldest first, of the log whose current file had `size` bytes."""
    from beige.auditlog import lines_backwards

    newest: deque[Record] = deque()
    for path in reversed(_files(log)):
        for record in _records(lines_backwards(path, size if path == log else None)):
            if len(newest) == count:
                return newest
            newest.appendleft(record)
    return newest


def _followed(log: Path, file: BinaryIO | None) -> Iterator[bytes]:
    """Whole lines as they are written, from where `file` stands, over rotations."""
    rest = b""
    while True:
        if file is None and log.exists():
            file = log.open("rb")
        block = file.read(65536) if file else b""
        if block:
            *whole, rest = (rest + block).split(b"\n")
            yield from whole
        elif file and _replaced(log, file):
            file.close()
            file, rest = None, b""
        else:
            time.sleep(POLL_S)


def _replaced(log: Path, file: BinaryIO) -> bool:
    """Was the log rotated, and is everything of the old file read?"""
    try:
        now = log.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(file.fileno())
    return (opened.st_dev, opened.st_ino) != (now.st_dev, now.st_ino) and file.tell() >= opened.st_size
