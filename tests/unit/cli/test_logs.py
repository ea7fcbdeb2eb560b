"""Log files: merged by time, readable, followed across rotation."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from beige.cli.logs import followed, last_lines, log_files, pretty
from beige.errors import NotFound
from beige.paths import Home


def line(second: int, message: str, **fields: object) -> str:
    stamp = f"2026-01-01T00:00:{second:02d}.000Z"
    return json.dumps({"ts": stamp, "level": "info", "service": "x", "logger": "x", "msg": message, **fields})


@pytest.fixture
def files(home: Home) -> list[Path]:
    (home.logs / "policy.log").write_text(f"READY\n{line(1, 'one')}\n{line(3, 'three')}\nTraceback\n")
    (home.logs / "llm-0.log").write_text(f"{line(2, 'two', call='c1')}\n")
    (home.logs / "llm-1.log").write_text(f"{line(4, 'four')}\n")
    return log_files(home, "")


def test_lines_of_all_services_are_merged_by_time(files: list[Path]) -> None:
    assert [text for text in (pretty(n, t).split(" ", 3)[-1].strip() for n, t in last_lines(files, 4))] == [
        "llm-0      two call=c1",
        "policy     three",
        "Traceback",
        "llm-1      four",
    ]


def test_a_plugins_line_says_whose_it_is() -> None:
    for logger, text in (("channels", "serving"), ("channels.telegram", "telegram: serving")):
        line = json.dumps({"level": "info", "service": "channels", "logger": logger, "msg": "serving"})
        assert pretty("channels", line).endswith(f"channels   {text}")


def test_a_service_is_each_of_its_processes(home: Home, files: list[Path]) -> None:
    assert [path.stem for path in log_files(home, "llm")] == ["llm-0", "llm-1"]
    assert [path.stem for path in log_files(home, "llm-1")] == ["llm-1"]


def test_an_unknown_service_is_named_with_what_there_is(home: Home, files: list[Path]) -> None:
    with pytest.raises(NotFound, match='did you mean "policy"'):
        log_files(home, "polic")


@pytest.mark.parametrize("count", [0, 1, 100])
def test_no_more_lines_than_asked_for(files: list[Path], count: int) -> None:
    assert len(last_lines(files, count)) == min(count, 6)


def test_following_survives_rotation(home: Home) -> None:
    path = home.logs / "policy.log"
    path.write_text("before\n")
    lines = followed([path])

    def write(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    # The generator opens the file at its first step; what is appended while it waits is found.
    import threading

    started = threading.Timer(0.3, write, ["first\nsec"])
    started.start()
    assert next(lines) == ("policy", "first")
    started.join()
    write("ond\nlast of the old file\n")
    path.rename(path.with_suffix(".log.1"))
    path.write_text("first of the new file\n")
    assert [text for _, text in islice(lines, 3)] == [
        "second",
        "last of the old file",
        "first of the new file",
    ]
    lines.close()
