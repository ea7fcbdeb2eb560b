"""The core tools read, write and patch, through the container's channel.

Never with open() on the host: the agent owns the workspace and can plant a symlink to any file there.
Inside the container a symlink leads nowhere the agent couldn't go itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol

from beige import wire
from beige.errors import BeigeError, Failed, Malformed, NotFound, TooLarge
from beige.messages.base import INLINE_LIMIT
from beige.messages.sandbox import (
    PatchRequest,
    PatchResult,
    ReadRequest,
    ReadResult,
    WriteRequest,
    WriteResult,
)
from beige.wire import Outcome
from services.sandbox import scripts
from services.sandbox.channel import Channel, Command, Exit, OnOutput
from services.sandbox.containers import Sandbox
from services.sandbox.content import (
    MAX_IMAGE,
    MAX_PATCHED,
    READ_BYTES,
    READ_LINES,
    absolute,
    cut_lines,
    file_path,
    is_utf8,
    kind_of,
    media_type,
    patched,
)
from services.sandbox.spec import own_environment

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
SNIFFED = 12
"""Bytes that tell what image it is."""
HEADER_ROOM = 32
"""Bytes for the size that READ prints before the content."""
MOST_LINES = 10**9
CLEAN_TIMEOUT_S = 10.0


class Call(Protocol):
    """What of `beige.bus.Request` the tools need."""

    outcome: Outcome

    @property
    def wants_items(self) -> bool: ...
    async def send(self, item: bytes) -> None: ...
    def items(self) -> AsyncIterator[bytes]: ...


class Files:
    """read, write and patch for one agent."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._patching = asyncio.Lock()
        """One patch at a time: it holds the whole file in memory."""
        self._cleaning: set[asyncio.Task[None]] = set()
        self._asked: Channel | None = None
        self._native = False

    async def close(self) -> None:
        for task in tuple(self._cleaning):
            task.cancel()
        await asyncio.gather(*self._cleaning, return_exceptions=True)

    # --- read ------------------------------------------------------------------------------------------

    async def read(self, call: Call, body: ReadRequest) -> ReadResult:
        """Text with at most READ_LINES lines and READ_BYTES bytes unless asked for other lines; images
        whole; of other files only what they are."""
        path = absolute(body.path)
        picture = await self._picture(call, path) if path.lower().endswith(PICTURES) else None
        size, head = (0, b"") if picture else await self._head(path, READ_BYTES + 1)
        kind = kind_of(head)
        if picture is not None:
            result = picture
        elif kind == "image":
            result = await self._image(call, path, size)
        elif kind == "binary":
            notice = f"[binary file of {size} bytes; look at it with exec (file, xxd, strings)]"
            result = ReadResult(kind, size=size, notice=notice)
        else:
            result = await self._text(path, size, head, body)
        call.outcome.exit_code = 0
        call.outcome.output_bytes = size if result.streamed else len(result.content)
        return result

    async def _head(self, path: str, most: int) -> tuple[int, bytes]:
        """The size of a file and its first bytes."""
        ended = await self._script(path, scripts.READ, str(most), limit_bytes=most + HEADER_ROOM)
        digits, _, head = bytes(_checked(ended, path).stdout.head).partition(b"\n")
        if not digits.isdigit():
            raise Failed(f"{path}: the sandbox gave no size", executed="no")
        return max(int(digits), len(head)), head  # files in /proc say 0

    async def _text(self, path: str, size: int, head: bytes, body: ReadRequest) -> ReadResult:
        limit = min(body.limit, MOST_LINES) or READ_LINES
        complete = len(head) >= size
        if body.offset == 1:
            data = head
        elif complete:
            data = head.split(b"\n", body.offset - 1)[-1] if head.count(b"\n") >= body.offset - 1 else b""
        else:
            data = await self._lines(path, body.offset, limit)
            complete = data.count(b"\n") <= limit and len(data) <= READ_BYTES
        lines = cut_lines(data, body.offset, limit, size, complete)
        notice = lines.notice
        if not is_utf8(lines.content):
            notice = f"{notice} [not UTF-8: some characters are shown wrong]".lstrip()
        return ReadResult(
            "text", lines.content, size=size, first_line=body.offset, lines=lines.count, notice=notice
        )

    async def _lines(self, path: str, first: int, count: int) -> bytes:
        most = READ_BYTES + 1
        arguments = (str(first), str(count + 1), str(most))
        ended = await self._script(path, scripts.LINES, *arguments, limit_bytes=most)
        return bytes(_checked(ended, path).stdout.head)

    async def _picture(self, call: Call, path: str) -> ReadResult | None:
        """A file that is named like an image, in one pass; None if it is none, or none we may give."""
        try:
            return await self._image(call, path, 0)
        except _NoPicture:
            return None

    async def _image(self, call: Call, path: str, size: int) -> ReadResult:
        """`size`: what was seen of it before; 0: nothing, so it may turn out to be no image."""
        if size > MAX_IMAGE:
            raise TooLarge(f"{path}: an image of {size} bytes; the limit is {MAX_IMAGE}")
        if size > INLINE_LIMIT and not call.wants_items:
            raise TooLarge(f"{path}: an image over {INLINE_LIMIT} bytes is only given as a stream")
        sink = _Sink(call)
        most = size or MAX_IMAGE
        ended = await self._script(
            path, scripts.READ, str(most), limit_bytes=most + HEADER_ROOM, keep=False, on_output=sink.take
        )
        _checked(ended, path)
        if not sink.media:
            raise _NoPicture
        if sink.size != sink.seen:
            raise Failed(f"{path}: was changed while it was read", executed="no")
        return ReadResult(
            "image", bytes(sink.kept), streamed=sink.streamed, media_type=sink.media, size=sink.size
        )

    # --- write -----------------------------------------------------------------------------------------

    async def write(self, call: Call, body: WriteRequest) -> WriteResult:
        """The file holds the content afterwards, or is what it was: a temporary file beside it is
        moved into place once size and SHA-256 are right. Parents are created, the mode is kept."""
        path = file_path(body.path)
        size, stdin = _source(call, body)
        created = await self._write(path, stdin, size)
        call.outcome.exit_code = 0
        return WriteResult(size, created)

    async def _write(
        self, path: str, stdin: bytes | AsyncIterator[bytes], size: int, *now_sha256: str
    ) -> bool:
        temporary = f".beige-write-{secrets.token_hex(8)}"
        step = scripts.REPLACE if now_sha256 else scripts.WRITE
        try:
            ended = await self._script(path, step, temporary, str(size), *now_sha256, stdin=stdin)
        except BaseException:
            # It was killed, or lost, so it could not clean up.
            task = asyncio.create_task(self._clean(path, temporary), name=f"clean-{temporary}")
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)
            raise
        if ended.status and (full := await self._sandbox.workspace.full()):
            raise Failed(f"{path}: {full}", executed="no")
        return bytes(_checked(ended, path).stdout.head).strip() == b"1"

    async def _clean(self, path: str, temporary: str) -> None:
        """If the container is gone, or stays busy, a hidden file is left."""
        with suppress(BeigeError, TimeoutError):
            async with asyncio.timeout(CLEAN_TIMEOUT_S):
                if self._sandbox.up:
                    await self._script(path, scripts.CLEAN, temporary)

    # --- patch -----------------------------------------------------------------------------------------

    async def patch(self, call: Call, body: PatchRequest) -> PatchResult:
        """Exact bytes, found once (or `all`), replaced; nothing else in the file changes."""
        path = file_path(body.path)
        async with self._patching:
            size, data = await self._head(path, MAX_PATCHED + 1)
            if size > MAX_PATCHED:
                raise TooLarge(f"{path}: patch takes files up to {MAX_PATCHED} bytes")
            old, new = body.old.encode(), body.new.encode()
            now_sha256, result = await asyncio.to_thread(
                lambda: (hashlib.sha256(data).hexdigest(), patched(data, old, new, body.all))
            )
            await self._write(path, result.content, len(result.content), now_sha256)
        call.outcome.exit_code = 0
        return PatchResult(result.replacements, result.first_line)

    async def _script(
        self,
        path: str,
        step: scripts.Step,
        *arguments: str,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        limit_bytes: int = 4096,
        keep: bool = True,
        on_output: OnOutput | None = None,
    ) -> Exit:
        """Take a step on `path`."""
        command = Command(
            scripts.argv(step, path, *arguments, native=await self._has_program()),
            own_environment(self._sandbox.agent),
            cwd="/",
            stdin=stdin,
            timeout_s=self._sandbox.config.sandbox.deadline_s,
            limit_bytes=limit_bytes,
            keep=keep,
        )
        return await self._sandbox.run(command, on_output)

    async def _has_program(self) -> bool:
        """Does the image have PROGRAM? Asked once of each container's executor."""
        channel = await self._sandbox.channel()
        if channel is not self._asked:
            command = Command((scripts.PROGRAM,), own_environment(self._sandbox.agent), cwd="/")
            try:
                self._native = (await self._sandbox.run(command)).status == scripts.PROGRAM_USAGE
            except NotFound:
                self._native = False
            self._asked = channel
        return self._native


def _checked(ended: Exit, path: str) -> Exit:
    """Raises what the script's exit says about `path`."""
    error = scripts.error_of(ended, path)
    if error is not None:
        raise error
    return ended


class _NoPicture(Exception):
    """The file is no image, or one that is not given; whoever reads it as any other file says why."""


class _Sink:
    """Takes READ's output: the size, then an image's bytes, which it keeps or sends on as they come."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._begun = b""
        self.size = -1
        """As `stat` says."""
        self.media, self.streamed = "", False
        self.seen = 0
        self.kept = bytearray()

    async def take(self, stream: str, data: bytes) -> None:
        if stream != "stdout":
            return
        if not self.media:
            self._begun += data
            digits, newline, data = self._begun.partition(b"\n")
            if not newline or len(data) < SNIFFED:
                return  # a file that is shorter is no image
            self._decide(digits, data)
        self.seen += len(data)
        if not self.streamed:
            self.kept += data
            return
        for start in range(0, len(data), wire.CHUNK):
            await self._call.send(data[start : start + wire.CHUNK])

    def _decide(self, digits: bytes, head: bytes) -> None:
        self.size = int(digits) if digits.isdigit() else MAX_IMAGE + 1
        self.media = media_type(head)
        self.streamed = self.size > INLINE_LIMIT
        if not self.media or self.size > MAX_IMAGE or (self.streamed and not self._call.wants_items):
            raise _NoPicture


def _source(call: Call, body: WriteRequest) -> tuple[int, bytes | AsyncIterator[bytes]]:
    """Size and bytes of what is to be written."""
    if body.content is None:
        return _streamed(call, body)
    return _inline(body, body.content)


def _inline(body: WriteRequest, content: bytes) -> tuple[int, bytes]:
    if body.size not in (0, len(content)):
        raise Malformed(f"size: is {body.size}, the content has {len(content)} bytes")
    if body.sha256 and body.sha256.lower() != hashlib.sha256(content).hexdigest():
        raise Malformed("sha256: is not the content's")
    return len(content), content


def _streamed(call: Call, body: WriteRequest) -> tuple[int, AsyncIterator[bytes]]:
    if len(body.sha256) != 64:
        raise Malformed("sha256: streamed content needs it, in hex")
    return body.size, verified(call.items(), body.size, body.sha256)


async def verified(chunks: AsyncIterator[bytes], size: int, sha256: str) -> AsyncIterator[bytes]:
    """The chunks, and Malformed before their end if they are not what policy and audit were told: the
    command that writes them is then killed and never gets to move its file into place."""
    digest, seen = hashlib.sha256(), 0
    async for chunk in chunks:
        seen += len(chunk)
        if seen > size:
            raise Malformed(f"size: more than the announced {size} bytes were sent")
        digest.update(chunk)
        yield chunk
    if seen != size:
        raise Malformed(f"size: {seen} bytes were sent, {size} announced")
    if digest.hexdigest() != sha256.lower():
        raise Malformed("sha256: is not the content's")
