"""The agents' socket protocol: bytes in, requests or errors out; results in, bytes out. Pure.

One JSON object per line, answered by one JSON object per line, in order (docs/socket-protocol.md):

    {"type":"tool_request","tool":"git","args":["status"]}
    {"type":"tool_response","success":true,"output":"OK","exitCode":0}

Every byte read here is the agent's: nothing in it says who is speaking. Fields that claim an identity
are accepted and ignored (`tests/unit/bridge/test_protocol.py::test_a_claimed_identity_is_ignored`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from beige.errors import BeigeError, Malformed, TooLarge
from beige.messages.base import Argument
from beige.messages.tools import ToolResult
from beige.wire import DECODE_ERRORS

MAX_LINE = 1024 * 1024
"""Bytes of one request without its newline."""
TOO_LONG: Final = TooLarge(f"the request is longer than {MAX_LINE} bytes")

EXIT_CODES = {
    "denied": 1, "failed": 1, "malformed": 2, "too_large": 2, "not_found": 127, "deadline_exceeded": 124,
    "cancelled": 75, "unavailable": 75, "overloaded": 75, "peer_lost": 75,
}  # fmt: skip
"""What a shell script sees for each error: 75 is EX_TEMPFAIL, "try again later"."""
UNCERTAIN = frozenset({"deadline_exceeded", "peer_lost", "cancelled"})
"""Errors of the way, not of the tool: the answer says whether the tool may have run."""

Id = Annotated[str, Meta(max_length=256)] | Annotated[int, Meta(ge=-(2**53), le=2**53)] | None


class ToolRequest(Struct, forbid_unknown_fields=True):
    """A valid request. What it claims about its sender is not kept."""

    type: Literal["tool_request"]
    tool: Annotated[str, Meta(min_length=1, max_length=64)]
    args: Annotated[list[Argument], Meta(max_length=4000)] = []
    cwd: Annotated[str, Meta(max_length=4096)] = ""
    token: Annotated[str, Meta(max_length=256)] = ""
    """The call token from the caller's environment; the broker judges it."""
    id: Id | UnsetType = UNSET
    """Echoed in the answer."""
    agent: Raw = Raw(b"")
    session: Raw = Raw(b"")
    session_context: Raw = msgspec.field(default=Raw(b""), name="sessionContext")
    channel: Raw = Raw(b"")


class ToolResponse(Struct, rename={"exit_code": "exitCode"}):
    """One answer; a field that is unset is not sent."""

    type: str = "tool_response"
    success: bool = False
    output: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    exit_code: int = 1
    id: Id | UnsetType = UNSET


_decode = msgspec.json.Decoder(ToolRequest).decode
_encode = msgspec.json.Encoder().encode


Line = bytes | TooLarge
"""A request line, or the error that stands for one."""


class Lines:
    """Cuts a byte stream into lines of at most `MAX_LINE` bytes."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._skipping = False

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return
            self._skipping = False
            data = data[end + 1 :]
        self._buffer += data

    def next(self) -> Line | None:
        """The next line without its newline; `TOO_LONG` once for a line over the limit, whose rest is
        dropped; None if more bytes are needed."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched <= self._limit:
                return None
            self._buffer.clear()
            self._searched = 0
            self._skipping = True
            return TOO_LONG
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line if end <= self._limit else TOO_LONG


def parse(line: bytes) -> ToolRequest:
    """The request in `line`. Malformed says what is wrong and where."""
    try:
        return _decode(line)
    except DECODE_ERRORS as error:
        raise Malformed(f"not a tool_request: {error}") from None


def result_line(result: ToolResult, request_id: Id | UnsetType = UNSET) -> bytes:
    """The answer for a tool that ran."""
    if result.success:
        return _line(ToolResponse(success=True, output=result.output, exit_code=0, id=request_id))
    response = ToolResponse(error=result.error, exit_code=result.exit_code or 1, id=request_id)
    if result.output:
        response.output = result.output
    return _line(response)


def error_line(error: BeigeError, request_id: Id | UnsetType = UNSET) -> bytes:
    """The answer for a call that did not get a result."""
    text = str(error)
    if error.code in UNCERTAIN:
        text += " (the tool may have run)" if error.executed == "maybe" else " (the tool did not run)"
    code = EXIT_CODES.get(error.code, 1)
    return _line(ToolResponse(error=text, exit_code=code, id=request_id))


def _line(response: ToolResponse) -> bytes:
    return _encode(response) + b"\n"
