"""What Docker says and what we make of it. The texts were captured from an engine (20.10.24)."""

from __future__ import annotations

import pytest

from beige.errors import Failed, Unavailable
from services.sandbox.failure import EngineError, Kind, classify, ended, last_line, to_beige

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
        400,
        "OCI runtime exec failed: exec failed: unable to start container process: "
        'exec: "nope": executable file not found in $PATH: unknown',
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


def test_the_engines_prose_is_shortened_and_made_printable() -> None:
    assert last_line("first\nlast \x1b[31mline\n\n") == "last ?[31mline"
    assert len(last_line("x" * 5000)) == 200
    assert last_line("") == "no reason given"
