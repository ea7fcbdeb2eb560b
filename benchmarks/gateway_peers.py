"""Roles of the gateway benchmark's processes; the protocol is that of `benchmarks.peers`.

http   {"count", "path"} → {"first_ms"}      streams one after the other
       {"hold": n} → {"open", "first_ms"}    n streams at once, once all have begun and wait
       {"release"} → {"complete"}            and once they have ended
       {"stall": n} → {"stalled"}            n streams of long answers of which only the beginning is read,
                                             once their turns have ended
       {"resume"} → {"behind"}               and how many of them have missed something when they read on
bus    {"count"} → {"first_ms"}              the same prompts as `beige prompt` makes them
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import uvloop

from beige import sessions
from beige.bus import Bus
from beige.messages.llm import PromptRequest
from beige.paths import Home
from benchmarks.peers import say

PATHS = {"api": "/api/agents/travel/prompt", "chat": "/v1/chat/completions"}
WORDS = " ".join(["long", *["x" * 4000] * 32])
SMALL = 4096
DEADLINE_S = 120.0


class Stream:
    """One streamed prompt on a connection of its own, read as it comes."""

    def __init__(self, home: Home) -> None:
        self._port = int(home.http_address.read_text().strip().rpartition(":")[2])
        self._token = home.http_token.read_text().strip()
        self.first_ms = 0.0
        self._seen = b""
        """What was read last."""

    async def open(self, path: str, text: str, session: str = "", buffer: int = 0) -> None:
        """Ask, and read until the answer's first piece."""
        if path == "api":
            asked: Any = {"text": text, "stream": True} | ({"session": session} if session else {})
        else:
            asked = {"model": "travel", "messages": [{"role": "user", "content": text}], "stream": True}
        began = time.perf_counter()
        await self._send("POST", PATHS[path], json.dumps(asked).encode(), buffer)
        await self._until(b'"text_delta"' if path == "api" else b'"content":"h')
        self.first_ms = (time.perf_counter() - began) * 1000

    async def follow(self, session: str) -> None:
        """The events of a prompt that somebody else asked for."""
        await self._send("GET", f"/api/agents/travel/sessions/{session}/events")

    async def rest(self, wanted: bytes = b'"kind":"result"') -> bool:
        """Read to the end; whether `wanted` was there."""
        data, found = self._seen, wanted in self._seen
        while not data.endswith(b"\r\n0\r\n\r\n") and (piece := await self._reader.read(65536)):
            data = data[-100:] + piece
            found |= wanted in data
        return found

    def close(self) -> None:
        self._writer.transport.abort()

    async def _send(self, method: str, path: str, body: bytes = b"", buffer: int = 0) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=SMALL)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)

    async def _until(self, wanted: bytes) -> None:
        data = b""
        while wanted not in data:
            piece = await self._reader.read(1024)
            if not piece:
                raise RuntimeError(f"the gateway closed the connection after {data[-500:]!r}")
            data += piece
        self._seen = data


class Http:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._held: list[Stream] = []

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            if "hold" in question:
                return await self._hold(question["hold"])
            if "release" in question:
                complete = await asyncio.gather(*(stream.rest() for stream in self._held))
                self._drop()
                return {"complete": sum(complete)}
            if "stall" in question:
                await asyncio.gather(*(self._stall() for _ in range(question["stall"])))
                return {"stalled": len(self._held)}
            if "resume" in question:
                behind = await asyncio.gather(*(stream.rest(b'"kind":"gone"') for stream in self._held))
                self._drop()
                return {"behind": sum(behind)}
            return {"first_ms": median([await self._one(question["path"]) for _ in range(question["count"])])}

    async def _hold(self, count: int) -> dict[str, Any]:
        self._held = [Stream(self._home) for _ in range(count)]
        await asyncio.gather(*(stream.open("api", "hold") for stream in self._held))
        return {"open": len(self._held), "first_ms": median(s.first_ms for s in self._held)}

    async def _stall(self) -> None:
        """One that stops reading. Its turn goes on to its end, which another one sees."""
        stream, other, session = Stream(self._home), Stream(self._home), sessions.new_id()
        await stream.open("api", WORDS, session, SMALL)
        self._held.append(stream)
        await other.follow(session)
        await other.rest()
        other.close()

    async def _one(self, path: str) -> float:
        stream = Stream(self._home)
        await stream.open(path, "hello")
        await stream.rest()
        stream.close()
        return stream.first_ms

    def _drop(self) -> None:
        for stream in self._held:
            stream.close()
        self._held = []


class OverBus:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        return {"first_ms": median([await self._one() for _ in range(question["count"])])}

    async def _one(self) -> float:
        began, first = time.perf_counter(), 0.0
        options = sessions.turn_options("travel", sessions.new_id(), "bench")
        async with self._bus.open("llm.prompt", PromptRequest("hello"), **options) as stream:
            async for event in stream:
                if event.kind == "text_delta" and not first:
                    first = time.perf_counter()
            await stream.result()
        return (first - began) * 1000


async def _serve(answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    say("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        say(await answer(json.loads(line)))


async def main(role: str) -> None:
    if role == "http":
        await _serve(Http(Home.find()).answer)
        return
    bus = Bus(Home.find(), "cli/1")
    await bus.start()
    await _serve(OverBus(bus).answer)
    await bus.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
