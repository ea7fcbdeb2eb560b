"""One tree of errors, grouped by what the caller can do about them.

Only `code`, the message and `executed` cross the wire; tracebacks, host paths and secrets never do.
`executed` answers the caller's one question after a failure: could the work have been done?
"""

from __future__ import annotations

from typing import ClassVar, Literal

Executed = Literal["no", "maybe"]


class BeigeError(Exception):
    """Base of all errors. `code` is stable and is what crosses the wire."""

    code: ClassVar[str] = "failed"
    default_executed: ClassVar[Executed] = "no"

    def __init__(self, message: str, *, executed: Executed | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.executed: Executed = executed or self.default_executed

    def __str__(self) -> str:
        return self.message


# --- fix the input -----------------------------------------------------------------------------


class ConfigError(BeigeError):
    """The configuration is wrong. `path` is the place in the file, e.g. `agents.travel.model`."""

    code = "config"

    def __init__(self, path: str, problem: str, allowed: str = "") -> None:
        text = f"{path}: {problem}" if path else problem
        super().__init__(f"{text}; {allowed}" if allowed else text)
        self.path, self.problem, self.allowed = path, problem, allowed


class Malformed(BeigeError):
    """The request breaks the protocol or a field has the wrong shape. The message names the field."""

    code = "malformed"


class TooLarge(BeigeError):
    """A body, line or file is over its limit. The message names the limit in bytes."""

    code = "too_large"


class NotFound(BeigeError):
    """The agent, session, file, tool or method named in the request does not exist."""

    code = "not_found"


# --- give up: asking again changes nothing ----------------------------------------------------


class Denied(BeigeError):
    """Policy, or the bus's access table, says no. The message is the reason shown to the agent."""

    code = "denied"


class Cancelled(BeigeError):
    """The caller, or the loss of the caller's parent call, ended this call."""

    code = "cancelled"
    default_executed = "maybe"


class Failed(BeigeError):
    """The executor tried and could not (a container that would not start, a plugin that raised)."""

    code = "failed"
    default_executed = "maybe"


# --- retry later --------------------------------------------------------------------------------


class Unavailable(BeigeError):
    """No process serves this method now (policy, audit or the executor is down)."""

    code = "unavailable"


class Overloaded(BeigeError):
    """A queue or budget is full. Nothing was executed."""

    code = "overloaded"


class DeadlineExceeded(BeigeError):
    """The call's time is over. `executed` says whether it had reached an executor."""

    code = "deadline_exceeded"


class PeerLost(BeigeError):
    """The process that held the call, or the bus connection, died. It may have been executed."""

    code = "peer_lost"
    default_executed = "maybe"


BY_CODE: dict[str, type[BeigeError]] = {
    cls.code: cls
    for cls in (
        Malformed, TooLarge, NotFound, Denied, Cancelled, Failed, Unavailable, Overloaded,
        DeadlineExceeded, PeerLost,
    )
}  # fmt: skip


def from_wire(code: str, message: str, executed: Executed) -> BeigeError:
    """The error that `code` stands for; an unknown code (a newer peer) becomes `Failed`."""
    return BY_CODE.get(code, Failed)(message, executed=executed)
