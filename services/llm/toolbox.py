"""Runs the model's tool calls over the bus, as children of the prompt's call. Touches the bus alone.

Each of them walks policy, audit, sandbox, audit; what comes back, also a refusal, becomes a result
that the model can react to. Only the end of the turn itself is raised.
"""

from __future__ import annotations

import codecs
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from beige.errors import BeigeError, Cancelled, Malformed
from beige.messages.base import INLINE_LIMIT
from beige.messages.llm import PromptEvent
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, WriteRequest
from beige.wire import CHUNK, WINDOW_ITEMS
from services.llm.conversation import Result, Text, ToolCall, ToolResult
from services.llm.tools import (
    ExecArgs,
    PatchArgs,
    ReadArgs,
    WriteArgs,
    WrongArguments,
    error_content,
    exec_content,
    parse_arguments,
    patch_content,
    read_content,
    write_content,
)

FILE_TTL_S = 120.0
EXEC_GRACE_S = 60.0
"""More than the command may run: starting the container takes its part too."""
READ_LIMIT = 8 * 1024 * 1024
"""Bytes kept of a streamed file; far more than a model is shown."""


class OpenCall(Protocol):
    """`beige.bus.Stream`, as far as it is used here."""

    def __aiter__(self) -> AsyncIterator[Any]: ...
    async def send(self, data: bytes) -> None: ...
    async def end(self) -> None: ...
    async def result(self) -> Any: ...


class Caller(Protocol):
    """`beige.bus.Request`: opens calls as children of the one being served."""

    @property
    def wants_items(self) -> bool: ...
    def open(self, method: str, body: Any, **options: Any) -> AbstractAsyncContextManager[OpenCall]: ...


Emit = Callable[[PromptEvent], Awaitable[None]]


class Toolbox:
    """The four core tools of one prompt."""

    def __init__(self, caller: Caller, emit: Emit, *, deadline_s: float) -> None:
        """`deadline_s`: the longest a command of this agent may run, in seconds."""
        self._caller, self._emit, self._deadline_s = caller, emit, deadline_s

    async def run(self, call: ToolCall) -> ToolResult:
        """The call's result, errors included. Raises Cancelled when the whole turn is over."""
        started = time.monotonic()
        exit_code: int | None = None
        try:
            content, exit_code = await self._run(call)
            failed = False
        except WrongArguments as error:
            content, failed = [Text(str(error))], True
        except Cancelled:
            raise
        except BeigeError as error:
            content, failed = error_content(error), True
        return ToolResult(
            tool_id=call.id,
            tool=call.name,
            content=content,
            is_error=failed,
            exit_code=exit_code,
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )

    async def _run(self, call: ToolCall) -> tuple[list[Result], int | None]:
        match parse_arguments(call):
            case ExecArgs() as args:
                return await self._exec(call.id, args)
            case ReadArgs() as args:
                return await self._read(args), None
            case WriteArgs() as args:
                return await self._write(args), None
            case PatchArgs() as args:
                body = PatchRequest(path=args.path, old=args.old, new=args.new, all=args.all)
                return patch_content(args.path, await self._call("sandbox.patch", body)), None

    async def _exec(self, tool_id: str, args: ExecArgs) -> tuple[list[Result], int]:
        body = ExecRequest(command=args.command, cwd=args.cwd or "/workspace", timeout_s=args.timeout_s)
        limit_s = min(args.timeout_s or self._deadline_s, self._deadline_s)
        window = WINDOW_ITEMS if self._caller.wants_items else 0
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        opened = self._caller.open("sandbox.exec", body, ttl_s=limit_s + EXEC_GRACE_S, window_items=window)
        async with opened as stream:
            async for item in stream:
                if text := decoders[item.stream].decode(item.data):
                    await self._emit(
                        PromptEvent(kind="tool_output", tool_id=tool_id, stream=item.stream, text=text)
                    )
            result = await stream.result()
        return exec_content(result), result.exit_code

    async def _read(self, args: ReadArgs) -> list[Result]:
        body = ReadRequest(path=args.path, offset=args.offset, limit=args.limit)
        content = bytearray()
        async with self._caller.open("sandbox.read", body, ttl_s=FILE_TTL_S) as stream:
            async for chunk in stream:
                content += chunk[: READ_LIMIT - len(content)]
            result = await stream.result()
        return read_content(result, bytes(content) if result.streamed else result.content)

    async def _write(self, args: WriteArgs) -> list[Result]:
        data = args.content.encode()
        if len(data) <= INLINE_LIMIT:
            body = WriteRequest(path=args.path, content=data)
            return write_content(args.path, await self._call("sandbox.write", body))
        body = WriteRequest(path=args.path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        async with self._caller.open("sandbox.write", body, ttl_s=FILE_TTL_S) as stream:
            await _upload(stream, data)
            return write_content(args.path, await stream.result())

    async def _call(self, method: str, body: Any) -> Any:
        async with self._caller.open(method, body, ttl_s=FILE_TTL_S, window_items=0) as stream:
            return await stream.result()


async def _upload(stream: OpenCall, data: bytes) -> None:
    """Send `data` as far as it is taken. Why it was not, is told by the call's result."""
    try:
        for at in range(0, len(data), CHUNK):
            await stream.send(data[at : at + CHUNK])
        await stream.end()
    except BeigeError:
        return


async def read_text(caller: Caller, path: str, limit: int) -> str:
    """At most `limit` bytes of a text file in the sandbox, through the same corridor. BeigeError as
    the sandbox says; Malformed if it is no text."""
    content = bytearray()
    async with caller.open("sandbox.read", ReadRequest(path=path), ttl_s=FILE_TTL_S) as stream:
        async for chunk in stream:
            content += chunk[: limit + 1 - len(content)]
        result = await stream.result()
    if result.kind != "text":
        raise Malformed(f"{path} is not a text file")
    data = bytes(content) if result.streamed else result.content
    text = data[:limit].decode(errors="replace")
    return text if len(data) <= limit else f"{text}\n[cut after {limit} bytes]"
