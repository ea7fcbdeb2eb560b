"""The endpoint that makes one governed call of a core tool, in an agent's sandbox."""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated, Any, Literal

from msgspec import Meta

from beige.errors import BeigeError, Malformed, TooLarge
from beige.messages.base import INLINE_LIMIT, Argument, Path
from beige.messages.sandbox import (
    ExecRequest,
    ExecResult,
    PatchRequest,
    PatchResult,
    ReadRequest,
    ReadResult,
    WriteRequest,
    WriteResult,
)
from beige.wire import CHUNK
from services.gateway.api import Call, Endpoint, Shape

FILE_TTL_S, EXEC_GRACE_S = 120.0, 60.0
READ_BYTES = 8 * 1024 * 1024
Line = Annotated[int, Meta(ge=1, le=2**53)]
Encoding = Literal["utf-8", "base64"]


class ExecParams(Shape):
    command: Argument = ""
    """Run with `bash -c`."""
    argv: Annotated[list[Argument], Meta(max_length=4000)] = []
    """Run as it is, in place of `command`."""
    cwd: Annotated[str, Meta(max_length=4096)] = "/workspace"
    env: dict[str, str] = {}
    timeout_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    """Seconds; 0: the agent's configured deadline."""
    stdin: Annotated[str, Meta(max_length=512 * 1024)] = ""


class ReadParams(Shape):
    path: Path
    offset: Line = 1
    """First line, counted from 1."""
    limit: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Number of lines; 0: up to the default."""


class WriteParams(Shape):
    path: Path
    content: str
    encoding: Encoding = "utf-8"


class PatchParams(Shape):
    path: Path
    old: Annotated[str, Meta(min_length=1, max_length=256 * 1024)]
    new: Annotated[str, Meta(max_length=256 * 1024)]
    all: bool = False


class Exec(Shape, tag_field="tool", tag="exec"):
    params: ExecParams


class Read(Shape, tag_field="tool", tag="read"):
    params: ReadParams


class Write(Shape, tag_field="tool", tag="write"):
    params: WriteParams


class Patch(Shape, tag_field="tool", tag="patch"):
    params: PatchParams


class ExecDone(Shape, tag_field="tool", tag="exec", omit_defaults=False):
    exit_code: int
    """The command's; 128 + signal when it was killed (124: timed out)."""
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    """What was produced."""
    stdout_cut: int
    stderr_cut: int
    """Bytes left out in the middle."""
    timed_out: bool
    duration_ms: float


class ReadDone(Shape, tag_field="tool", tag="read", omit_defaults=False):
    kind: str
    """text, image or binary."""
    content: str
    encoding: Encoding
    media_type: str
    size: int
    """Bytes of the whole file."""
    first_line: int
    lines: int
    notice: str
    """What was left out, in words."""


class WriteDone(Shape, tag_field="tool", tag="write", omit_defaults=False):
    size: int
    created: bool


class PatchDone(Shape, tag_field="tool", tag="patch", omit_defaults=False):
    replacements: int
    first_line: int


async def execute(call: Call) -> Any:
    """The call is decided, written down and executed as the agent's own; it ends when its client goes."""
    match call.body:
        case Exec(params):
            return await call.while_connected(_exec(call, params))
        case Read(params):
            return await call.while_connected(_read(call, params))
        case Write(params):
            return await call.while_connected(_write(call, params))
        case Patch(params):
            body = PatchRequest(params.path, params.old, params.new, params.all)
            done: PatchResult = await call.while_connected(call.bus("sandbox.patch", body, ttl_s=FILE_TTL_S))
            return PatchDone(done.replacements, done.first_line)
    raise AssertionError(call.body)


async def _exec(call: Call, params: ExecParams) -> ExecDone:
    limit_s = call.gateway.config.agents[call.agent].sandbox.deadline_s
    body = ExecRequest(params.command, params.argv, params.cwd, params.env, params.timeout_s,
                       params.stdin.encode())  # fmt: skip
    ttl_s = min(params.timeout_s or limit_s, limit_s) + EXEC_GRACE_S
    done: ExecResult = await call.bus("sandbox.exec", body, ttl_s=ttl_s)
    return ExecDone(
        done.exit_code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"),
        done.stdout_bytes, done.stderr_bytes, done.stdout_cut, done.stderr_cut, done.timed_out,
        done.duration_ms,
    )  # fmt: skip


async def _read(call: Call, params: ReadParams) -> ReadDone:
    body, content = ReadRequest(params.path, params.offset, params.limit), bytearray()
    opened = call.gateway.bus.open(
        "sandbox.read", body, agent=call.agent, channel=call.channel, ttl_s=FILE_TTL_S
    )
    async with opened as stream:
        async for chunk in stream:
            content += chunk
            if len(content) > READ_BYTES:
                raise TooLarge(f"the file has more than {READ_BYTES} bytes: read it in parts")
        done: ReadResult = await stream.result()
    data = bytes(content) if done.streamed else done.content
    text, encoding = _text(data) if done.kind == "text" else (base64.b64encode(data).decode(), "base64")
    return ReadDone(done.kind, text, encoding, done.media_type, done.size, done.first_line, done.lines,
                    done.notice)  # fmt: skip


def _text(data: bytes) -> tuple[str, Encoding]:
    return data.decode(errors="replace"), "utf-8"


async def _write(call: Call, params: WriteParams) -> WriteDone:
    data = _content(params)
    if len(data) <= INLINE_LIMIT:
        done: WriteResult = await call.bus("sandbox.write", WriteRequest(params.path, data), ttl_s=FILE_TTL_S)
        return WriteDone(done.size, done.created)
    body = WriteRequest(params.path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    opened = call.gateway.bus.open(
        "sandbox.write", body, agent=call.agent, channel=call.channel, ttl_s=FILE_TTL_S
    )
    async with opened as stream:
        try:
            for at in range(0, len(data), CHUNK):
                await stream.send(data[at : at + CHUNK])
            await stream.end()
        except BeigeError:
            pass  # why it was not taken is told by the result
        done = await stream.result()
    return WriteDone(done.size, done.created)


def _content(params: WriteParams) -> bytes:
    if params.encoding == "utf-8":
        return params.content.encode()
    try:
        return base64.b64decode(params.content, validate=True)
    except ValueError:
        raise Malformed("params.content: is not base64") from None


ENDPOINTS = (
    Endpoint("POST", "/api/agents/{agent}/exec", "Run one core tool in the agent's sandbox.", execute,
             ("exec",), body=Exec | Read | Write | Patch, reply=ExecDone | ReadDone | WriteDone | PatchDone),
)  # fmt: skip
