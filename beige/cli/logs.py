"""`beige logs`: the services' log files, merged by time, followed across rotation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from beige.cli.printable import printable
from beige.errors import NotFound
from beige.paths import Home

POLL_S = 0.2
MAX_READ = 1024 * 1024


def logs(
    service: Annotated[str, typer.Argument(help="One service, e.g. llm; left out: all.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines to begin with.")] = 50,
    json_output: Annotated[
        bool, typer.Option("--json", help="The lines as the services wrote them.")
    ] = False,
) -> None:
    """Show the services' logs, oldest line first.

    \b
    Examples:
      beige logs policy -n 20
      beige logs -f --json | jq 'select(.level == "error")'
    """
    import sys

    from beige.cli.terminal import Writer

    out = Writer(sys.stdout)
    files = log_files(Home.find(), service)
    show = (lambda name, line: line) if json_output else pretty
    for name, line in last_lines(files, lines):
        out.write(show(name, line) + "\n")
    if follow:
        for name, line in followed(files):
            out.write(show(name, line) + "\n")


def log_files(home: Home, service: str) -> list[Path]:
    """The log files of `service` (each of its processes), or all. NotFound names what there is."""
    found = sorted(path for path in home.logs.glob("*.log"))
    if not service:
        return found
    chosen = [path for path in found if path.stem == service or path.stem.rpartition("-")[0] == service]
    if not chosen:
        from beige.config.problems import suggest

        known = {path.stem for path in found}
        raise NotFound(f"no log of {service!r}; {suggest(service, known, kind='log')}")
    return chosen


def last_lines(files: list[Path], count: int) -> list[tuple[str, str]]:
    """The newest `count` lines of all files, by time; lines without one stay behind the line before."""
    from beige.supervisor.readiness import tail

    dated: list[tuple[str, str, str]] = []
    for path in files:
        stamp = ""
        for line in tail(path, count):
            stamp = _stamp(line) or stamp
            dated.append((stamp, path.stem, line))
    dated.sort(key=lambda entry: entry[0])
    return [(name, line) for _, name, line in dated[len(dated) - count :]] if count else []


def _stamp(line: str) -> str:
    fields = _fields(line)
    return str(fields.get("ts", "")) if fields else ""


def _fields(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def pretty(name: str, line: str) -> str:
    """`12:00:01.123 error   llm-0    message key=value`, with the plugin's name before the message of one; a
    line that is no JSON stays as it is."""
    fields = _fields(line)
    if fields is None:
        return f"{name:<10} {line}"
    stamp = str(fields.pop("ts", ""))[11:23]
    level, message = fields.pop("level", ""), fields.pop("msg", "")
    trace = fields.pop("traceback", "")
    service, logger = str(fields.pop("service", "")), str(fields.pop("logger", ""))
    if logger.startswith(f"{service}."):
        message = f"{logger.removeprefix(f'{service}.')}: {message}"
    more = "".join(f" {key}={value}" for key, value in fields.items())
    # One line, so that what an agent said can't look like a line of its own.
    text = printable(f"{message}{more}")
    lines = [f"{stamp} {level:<7} {name:<10} {text}"]
    return "\n".join(lines + [f"    | {printable(line)}" for line in str(trace).splitlines()])


def followed(files: list[Path]) -> Iterator[tuple[str, str]]:
    """New lines as they are written, for ever. A file that is rotated is read to its end first."""
    tails = [_Tail(path) for path in files]
    try:
        while True:
            lines = [(one.path.stem, line) for one in tails for line in one.new_lines()]
            yield from lines
            if not lines:
                time.sleep(POLL_S)
    finally:
        for one in tails:
            one.close()


class _Tail:
    """One file from its present end on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self._file.seek(0, 2)
        self._rest = b""

    def close(self) -> None:
        self._file.close()

    def new_lines(self) -> list[str]:
        data = self._file.read(MAX_READ)
        if not data and self._replaced():
            self._file.close()
            self._file = self.path.open("rb")
            data = self._file.read(MAX_READ)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def _replaced(self) -> bool:
        """Rotated (another file has the name now) or cut short."""
        import os

        try:
            now, ours = self.path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            return False
        return now.st_ino != ours.st_ino or now.st_size < self._file.tell()
