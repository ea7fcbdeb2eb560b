"""What the engine's errors mean. Pure: status and text in, a kind and an error for the caller out.

Docker reports causes in prose; the patterns are its wording in 20.10 to 28, and the cases in
`tests/unit/sandbox/test_failure.py` are strings captured from an engine. Host paths and the
engine's own words stay out of the errors that cross the wire, apart from a short last line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from beige.errors import BeigeError, Failed, Unavailable


class Kind(Enum):
    UNREACHABLE = "unreachable"
    """No engine answers, or this user may not talk to it."""
    TIMEOUT = "timeout"
    """It took the request and did not answer in time."""
    IMAGE_MISSING = "image missing"
    CONTAINER_MISSING = "container missing"
    NAME_TAKEN = "name taken"
    NOT_RUNNING = "not running"
    COMMAND_MISSING = "command missing"
    """The image has no such program: for /beige/init, a foreign image."""
    RUNTIME_MISSING = "runtime missing"
    DISK_FULL = "disk full"
    OTHER = "other"


_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (Kind.IMAGE_MISSING, r"no such image|pull access denied|manifest unknown"),
        (Kind.NAME_TAKEN, r"is already in use by container"),
        (Kind.NOT_RUNNING, r"is not running|is not paused|is restarting|cannot exec in a (stopped|paused)"),
        (Kind.RUNTIME_MISSING, r"unknown (or invalid )?runtime|invalid runtime name|cannot find runtime"),
        (Kind.DISK_FULL, r"no space left on device|disk quota exceeded"),
        (
            Kind.COMMAND_MISSING,
            r'exec: "[^"]*": (stat [^:]*: )?(no such file|executable file not found|permission denied)'
            # gVisor's words, of a container and of a command.
            r"|(creating process|in sandbox): failed to load [^:]*: (no such file|permission denied)"
            r"|error finding executable",
        ),
        (Kind.CONTAINER_MISSING, r"no such (container|exec)|no such exec instance"),
    )
)


class EngineError(Exception):
    """Raised by `engine.py` alone; never crosses the wire."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(f"{kind.value}: {text}")
        self.kind, self.text = kind, text


def classify(status: int | None, text: str) -> Kind:
    """`status`: the HTTP status, None if there was no answer."""
    if status is None:
        return Kind.UNREACHABLE
    for kind, pattern in _PATTERNS:
        if pattern.search(text):
            return kind
    return Kind.OTHER


def to_beige(error: EngineError, agent: str, image: str) -> BeigeError:
    """The error the caller of a sandbox method gets. Nothing of the command ran."""
    match error.kind:
        case Kind.UNREACHABLE:
            return Unavailable("the Docker engine can't be reached: run `beige doctor`")
        case Kind.TIMEOUT:
            return Unavailable("the Docker engine does not answer in time")
        case Kind.IMAGE_MISSING:
            remedy = "beige image build" if image.startswith("beige-sandbox") else f"docker pull {image}"
            return _failed(agent, f"the image {image} is missing: run `{remedy}`")
        case Kind.NAME_TAKEN:
            return _failed(agent, "its name is taken by a container that is not this home's")
        case Kind.RUNTIME_MISSING:
            return _failed(agent, "the engine does not know the runtime of agents.*.sandbox.runtime")
        case Kind.DISK_FULL:
            return _failed(agent, "the engine's disk is full")
        case Kind.CONTAINER_MISSING | Kind.NOT_RUNNING:
            return _failed(agent, "it was stopped from outside")
        case Kind.COMMAND_MISSING:
            return _failed(agent, f"the image {image} can't start a program: {last_line(error.text)}")
        case Kind.OTHER:
            return _failed(agent, last_line(error.text))


def _failed(agent: str, why: str) -> Failed:
    return Failed(f"the container of agent {agent!r} can't be used: {why}", executed="no")


KILLED = 137
"""Exit code of a first process that was killed, by whomever."""
NEAR_S = 1.0
"""Between the engine's notice of a kill for memory and the end that it caused; milliseconds, usually."""


@dataclass(frozen=True)
class Happening:
    """What the engine remembers of a container: `oom`, or `kill` with the signal's number."""

    action: str
    at: float
    """Seconds since the epoch, by the engine's clock."""
    signal: str = ""


def ended_for_memory(
    exit_code: int, oom_killed: bool, finished: str, history: Sequence[Happening]
) -> bool | None:
    """Was it the first process that the kernel killed for memory? None: the engine has forgotten.

    `oom_killed` (State.OOMKilled) alone does not say so: it stays true from any child that was killed
    before, so that an agent could have its container's end by the operator's hand look like its own.
    """
    if not oom_killed or exit_code != KILLED:
        return False
    kills = [one.at for one in history if one.action == "kill" and one.signal == "9"]
    for_memory = [one.at for one in history if one.action == "oom"]
    if not for_memory:
        return False if kills else None
    last = max(for_memory)
    return last >= moment(finished) - NEAR_S and not any(last < at for at in kills)


def moment(text: str) -> float:
    """The engine's RFC 3339, whose nanoseconds are cut; 0 for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def ended(agent: str, state: str, exit_code: int, for_memory: bool, seen: str) -> Failed:
    """Why a command's channel broke, from the container's state afterwards."""
    if for_memory and state != "running":
        why = "the container ran out of memory"
    elif state == "running":
        why = seen
    elif state == "paused":
        why = f"the container is paused; {seen}"
    elif state == "missing":
        why = "the container was removed"
    else:
        why = f"the container ended ({state}, exit code {exit_code})"
    return Failed(f"the command of agent {agent!r} was lost: {why}")


def last_line(text: str, limit: int = 200) -> str:
    """The end of an engine's message, printable and short."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    return "".join(c if c.isprintable() else "?" for c in lines[-1])[-limit:]
