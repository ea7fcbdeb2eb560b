"""Listeners on real sockets with a relay of our own, and clients that speak to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from beige.errors import Denied
from beige.messages.tools import ToolResult
from beige.paths import Home
from socket_bridge.desk import Desk
from socket_bridge.hangup import HangupWatch
from socket_bridge.listener import Listener
from socket_bridge.protocol import ToolRequest


class Executor:
    """The relay: `echo`, `deny`, `hold` until `release`, `big N`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.running = self.most = self.cancelled = 0
        self.gate = asyncio.Event()

    async def __call__(self, agent: str, request: ToolRequest) -> ToolResult:
        self.calls.append((agent, " ".join(request.args)))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.run(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def run(self, request: ToolRequest) -> ToolResult:
        if request.tool == "deny":
            raise Denied("Permission denied")
        if request.tool == "crash":
            raise RuntimeError("/home/op/secret")
        if request.tool == "hold":
            await self.gate.wait()
        if request.tool == "big":
            return ToolResult(True, "x" * int(request.args[0]))
        return ToolResult(True, " ".join(request.args))


class Bridge:
    """Listeners for some agents over one executor."""

    def __init__(self, home: Home, *agents: str) -> None:
        self.home = home
        self.executor = Executor()
        self.hangups = HangupWatch(asyncio.get_running_loop())
        self.desks = {agent: Desk(agent, self.executor) for agent in agents}
        self.listeners = [Listener(home, desk, self.hangups) for desk in self.desks.values()]

    async def __aenter__(self) -> Bridge:
        for listener in self.listeners:
            await listener.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self.listeners:
            await listener.close()
        self.hangups.close()
        assert self.executor.running == 0

    async def client(self, agent: str = "a", limit: int = 8 * 1024 * 1024) -> Client:
        reader, writer = await asyncio.open_unix_connection(self.home.gateway_socket(agent), limit=limit)
        return Client(reader, writer)


class Client:
    """An agent's process at the other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *requests: Any) -> None:
        self.writer.write(b"".join(r if isinstance(r, bytes) else line(*r) for r in requests))

    async def answer(self) -> dict[str, Any]:
        text = await self.reader.readline()
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def ask(self, *words: str) -> dict[str, Any]:
        self.send(words)
        return await self.answer()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def line(tool: str, *args: str, **fields: Any) -> bytes:
    request = {"type": "tool_request", "tool": tool, "args": list(args)} | fields
    return json.dumps(request).encode() + b"\n"


def run(home: Home, test: Callable[[Bridge], Awaitable[None]], *agents: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Bridge(home, *(agents or ("a",))) as bridge:
            await test(bridge)

    uvloop.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)
