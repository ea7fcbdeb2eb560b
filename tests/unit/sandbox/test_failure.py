"""What Docker says and what we make of it. The texts were captured from an engine (20.10.24),
with runc and gVisor."""

from __future__ import annotations

from typing import Any

import pytest

from beige.errors import Failed, Unavailable
from services.sandbox.failure import (
    EngineError,
    Happening,
    Kind,
    classify,
    ended,
    ended_for_memory,
    last_line,
    to_beige,
)

CASES = [
    (404, "No such image: beige-nope:latest", Kind.IMAGE_MISSING),
    (404, "no such image: beige-nope:latest: No such image: beige-nope:latest", Kind.IMAGE_MISSING),
    (404, "No such container: nope", Kind.CONTAINER_MISSING),
    (404, "No such exec instance: deadbeef", Kind.CONTAINER_MISSING),
    (
        400,
        "failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
        'container process: exec: "/beige/init": stat /beige/init: no such file or directory: unknown',
        Kind.COMMAND_MISSING,
    ),
    (
        500,
        "OCI runtime start failed: starting container: starting root container: starting sandbox: "
        "creating process: failed to load /beige/init: no such file or directory: unknown",
        Kind.COMMAND_MISSING,
    ),
    (
        400,
        "OCI runtime exec failed: exec failed: unable to start container process: "
        'exec: "nope": executable file not found in $PATH: unknown',
        Kind.COMMAND_MISSING,
    ),
    (
        400,
        'OCI runtime exec failed: executing processes for container: executing command "nope" in sandbox: '
        'error finding executable "nope" in PATH [/tools/bin /usr/bin]: no such file or directory: unknown',
        Kind.COMMAND_MISSING,
    ),
    (
        400,
        'OCI runtime exec failed: executing processes for container: executing command "/etc/passwd" in '
        "sandbox: failed to load /etc/passwd: permission denied: unknown",
        Kind.COMMAND_MISSING,
    ),
    (
        409,
        'Conflict. The container name "/cap-x" is already in use by container "da131cb71bf9". '
        "You have to remove (or rename) that container to be able to reuse that name.",
        Kind.NAME_TAKEN,
    ),
    (409, "Container da131cb71bf9 is not running", Kind.NOT_RUNNING),
    (400, "Unknown runtime specified nope", Kind.RUNTIME_MISSING),
    (500, "mkdir /var/lib/docker/overlay2/x: no space left on device", Kind.DISK_FULL),
    (
        400,
        'invalid mount config for type "bind": bind source path does not exist: /nope/x',
        Kind.OTHER,
    ),
    (None, "FileNotFoundError(2, 'No such file or directory')", Kind.UNREACHABLE),
    (None, "('Connection aborted.', PermissionError(13, 'Permission denied'))", Kind.UNREACHABLE),
]


@pytest.mark.parametrize(("status", "text", "kind"), CASES)
def test_the_engines_words_are_understood(status: int | None, text: str, kind: Kind) -> None:
    assert classify(status, text) is kind


def test_a_missing_engine_is_something_to_try_again_later() -> None:
    error = to_beige(EngineError(Kind.UNREACHABLE, "x"), "travel", "i")
    assert isinstance(error, Unavailable)
    assert "beige doctor" in str(error)


def test_a_missing_image_names_the_remedy() -> None:
    error = to_beige(EngineError(Kind.IMAGE_MISSING, "x"), "travel", "beige-sandbox:latest")
    assert isinstance(error, Failed)
    assert "beige image build" in str(error)
    other = to_beige(EngineError(Kind.IMAGE_MISSING, "x"), "travel", "python:3.12")
    assert "docker pull python:3.12" in str(other)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_an_answer_that_says_nothing_was_executed(kind: Kind) -> None:
    error = to_beige(EngineError(kind, "some\nlong\ntext"), "travel", "i")
    assert error.executed == "no"


ENDS = [
    (("exited", 137, True), "out of memory"),
    (("exited", 137, False), "exited, exit code 137"),
    (("missing", 0, False), "was removed"),
    (("running", 0, True), "broke the protocol"),
    (("paused", 0, False), "is paused"),
]


@pytest.mark.parametrize(("state", "words"), ENDS)
def test_a_lost_command_says_why(state: tuple[str, int, bool], words: str) -> None:
    error = ended("travel", *state, "the executor broke the protocol: x")
    assert words in str(error)
    assert error.executed == "maybe"


FIRST = [Happening("oom", 1795992258.550303)]
CHILD = [Happening("oom", 1795992262.869992)]
"""Captured: ends at FINISHED follow."""
FINISHED = {"first": "2026-11-29T22:44:18.558495466Z", "child": "2026-11-29T22:44:24.759496228Z"}
OTHERS_KILL = Happening("kill", 1795992264.74, "9")
MEMORY = {
    "the first process": (137, True, "first", FIRST, True),
    "it, after a child long before": (137, True, "first", [Happening("oom", 1795992200.0), *FIRST], True),
    "it, though told a signal before": (
        137,
        True,
        "first",
        [Happening("kill", 1795992258.1, "15"), *FIRST],
        True,
    ),
    "noticed after the end": (137, True, "first", [Happening("oom", 1795992258.9)], True),
    "a child, then a kill of the host's": (137, True, "child", CHILD, False),
    "a child, then a kill of the engine's": (137, True, "child", [*CHILD, OTHERS_KILL], False),
    "a child and at once a kill": (137, True, "child", [Happening("oom", 1795992264.7), OTHERS_KILL], False),
    "a child, forgotten, then a kill": (137, True, "child", [OTHERS_KILL], False),
    "a child, then an end of its own": (3, True, "child", CHILD, False),
    "a kill alone": (137, False, "child", [OTHERS_KILL], False),
    "all forgotten": (137, True, "first", [], None),
}


@pytest.mark.parametrize("case", MEMORY.values(), ids=MEMORY)
def test_only_a_kill_of_the_first_process_is_an_end_for_memory(case: Any) -> None:
    code, flag, finished, history, expected = case
    assert ended_for_memory(code, flag, FINISHED[finished], history) is expected


def test_the_engines_prose_is_shortened_and_made_printable() -> None:
    assert last_line("first\nlast \x1b[31mline\n\n") == "last ?[31mline"
    assert len(last_line("x" * 5000)) == 200
    assert last_line("") == "no reason given"
