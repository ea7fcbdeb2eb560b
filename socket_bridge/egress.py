"""One agent's way to the internet: ends its proxy connections, makes each a governed call, carries bytes.

Who connects speaks for this agent, as on its other socket. A connection serves one request: a tunnel, or one
plain request, after which it is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

import h11

from beige.destinations import missing_rule
from beige.errors import BeigeError, Denied
from beige.messages.egress import ConnectRequest
from socket_bridge.proxy_head import MAX_HEAD, Asked, Refused, answer_headers, asked, refusal

WAITING = 64
"""Of one agent, beyond those it may have open: they wait. More are closed at once, with a word."""
HEAD_S = 20.0
"""Until the whole head of a request has come."""
TURN_S = 60.0
"""How long a connection waits until the agent has fewer open."""
LINGER_S = 2.0
"""How long is read after a refusal: a closed door with words unread in it swallows the answer."""
CHUNK = 32 * 1024
STATUS = {
    "denied": 403, "malformed": 400, "too_large": 413, "overloaded": 503, "unavailable": 503, "failed": 502,
    "deadline_exceeded": 504, "peer_lost": 502, "not_found": 404, "cancelled": 502,
}  # fmt: skip
log = logging.getLogger("bridge")


class Way(Protocol):
    """`beige.bus.Stream`, as far as it is used here."""

    async def __aenter__(self) -> Way: ...
    async def __aexit__(self, *error: Any) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def send(self, data: bytes) -> None: ...
    async def end(self) -> None: ...
    async def result(self) -> Any: ...


Connect = Callable[[str, ConnectRequest, str], Way]
"""Agent, request and call token to a call that is made when it is entered; BeigeError."""


class Door:
    """All proxy connections of one agent. `agent` is the listener's: no request can change it."""

    def __init__(
        self, agent: str, connect: Connect, limit: int, *, head_s: float = HEAD_S, turn_s: float = TURN_S
    ) -> None:
        self.agent = agent
        self._connect = connect
        self._turn = _Turn(limit, turn_s)
        self._most = limit + WAITING
        self._head_s = head_s
        self._serving: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called for each connection; never raises."""
        if len(self._serving) >= self._most:
            # Nothing is waited for: descriptors are what all agents share.
            writer.write(refusal(Refused(503, f"agent '{self.agent}' has {self._most} connections already")))
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._answered(reader, writer)
        except asyncio.CancelledError:
            pass  # the bridge ends
        except Exception:
            log.exception("egress failed", extra={"agent": self.agent})
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(reader, writer)
        try:
            wanted = asked(await client.head(self._head_s))
            async with self._turn:
                await self._carried(client, wanted)
        except Refused as refused:
            if not client.answered:
                await _refuse(reader, writer, refused)
        except ConnectionError:
            pass  # the agent's end is gone

    async def _carried(self, client: Client, wanted: Asked) -> None:
        where = wanted.destination
        request = ConnectRequest(where.host, where.port, wanted.scheme, wanted.method)
        try:
            async with self._connect(self.agent, request, wanted.token) as way:
                items = aiter(way)
                if await anext(items, None) is None:
                    await way.result()
                    raise Refused(502, "the gateway ended the connection")
                carry = _tunnel if wanted.onward is None else _exchange
                await carry(client, wanted, way, items)
        except BeigeError as error:
            if client.answered:
                return  # in the middle of it: all there is to say is the end
            raise self._refused(error, wanted) from None

    def _refused(self, error: BeigeError, wanted: Asked) -> Refused:
        rule = missing_rule(self.agent, wanted.destination)
        by_policy = isinstance(error, Denied) and rule in str(error)
        return Refused(STATUS.get(error.code, 502), str(error), rule if by_policy else "")


class _Turn:
    """The agent's places. Entering waits for one; Refused if none is free for too long."""

    def __init__(self, places: int, patience_s: float) -> None:
        self._places, self._patience_s = asyncio.Semaphore(places), patience_s

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._places.acquire()
        except TimeoutError:
            raise Refused(503, "all connections of this agent are in use") from None

    async def __aexit__(self, *_: object) -> None:
        self._places.release()


class Client:
    """The agent's end: reads with h11, knows whether anything was answered yet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer
        # drain() then means that the kernel has it all, and closing loses nothing.
        writer.transport.set_write_buffer_limits(high=0)
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self.answered = False

    async def head(self, limit_s: float) -> h11.Request:
        """Refused: no HTTP, too long, too slow. ConnectionError: gone before it was complete."""
        try:
            async with asyncio.timeout(limit_s):
                event = await self.event()
        except TimeoutError:
            raise Refused(408, f"the request's head did not come within {limit_s:g} s") from None
        if not isinstance(event, h11.Request):
            raise ConnectionResetError
        return event

    async def event(self) -> Any:
        """h11's next event of the agent's request. Refused if it is no HTTP."""
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                self.http.receive_data(await self.reader.read(CHUNK))
        except h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint, f"this is not HTTP: {error}") from None
        return event

    async def write(self, data: bytes) -> None:
        self.answered = True
        self._writer.write(data)
        await self._writer.drain()


async def _tunnel(client: Client, _: Asked, way: Way, items: AsyncIterator[bytes]) -> None:
    await client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def up() -> None:
        data = client.http.trailing_data[0]
        with suppress(BeigeError):  # the call is over: what came of it is for `down` to see
            while data or (data := await client.reader.read(CHUNK)):
                await way.send(data)
                data = b""
            await way.end()

    async def down() -> None:
        async for data in items:
            await client.write(data)

    await _both(up(), down())


async def _exchange(client: Client, wanted: Asked, way: Way, items: AsyncIterator[bytes]) -> None:
    """One plain request. Both sides are read and written anew: the agent's second request on the same
    connection, or a server's second answer, goes nowhere."""
    server = h11.Connection(h11.CLIENT, max_incomplete_event_size=4 * MAX_HEAD)

    async def up() -> None:
        with suppress(BeigeError):  # the call is over: what came of it is for `down` to see
            await sent()

    async def sent() -> None:
        assert wanted.onward is not None
        await way.send(server.send(wanted.onward) or b"")
        while True:
            event = await client.event()
            if isinstance(event, h11.Data):
                for start in range(0, len(event.data), CHUNK):
                    await way.send(server.send(h11.Data(event.data[start : start + CHUNK])) or b"")
            elif isinstance(event, h11.EndOfMessage):
                if data := server.send(event):
                    await way.send(data)
                return
            else:
                return  # the agent has hung up

    async def down() -> None:
        while True:
            event = server.next_event()
            if event is h11.NEED_DATA:
                server.receive_data(await _next(way, items))
            elif isinstance(event, h11.InformationalResponse):
                await client.write(client.http.send(_informed(event)) or b"")
            elif isinstance(event, h11.Response):
                await client.write(client.http.send(_answer(event)) or b"")
            elif isinstance(event, h11.Data):
                await client.write(client.http.send(h11.Data(event.data)) or b"")
            else:
                await client.write(client.http.send(h11.EndOfMessage()) or b"")
                return

    try:
        await _both(up(), down())
    except h11.ProtocolError as error:
        if not client.answered:
            raise Refused(502, f"the server did not answer in HTTP: {error}") from None
    with suppress(BeigeError):
        await way.end()
        await way.result()  # so that it is recorded as done, not as cancelled


async def _next(way: Way, items: AsyncIterator[bytes]) -> bytes:
    """What came in, or nothing at its end. BeigeError if that was no good end."""
    data = await anext(items, None)
    if data is None:
        await way.result()
    return data or b""


def _answer(response: h11.Response) -> h11.Response:
    headers = [*answer_headers(response), (b"Connection", b"close")]
    return h11.Response(status_code=response.status_code, reason=response.reason, headers=headers)


def _informed(response: h11.InformationalResponse) -> h11.InformationalResponse:
    return h11.InformationalResponse(
        status_code=response.status_code, reason=response.reason, headers=answer_headers(response)
    )


async def _both(up: Awaitable[None], down: Awaitable[None]) -> None:
    """Until `down` is over, which is the end of it all; what goes up may end before. The first error of
    either ends both and is raised."""
    tasks = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done() and not tasks[1].done():
            tasks[0].result()
            await tasks[1]
        tasks[1].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refused: Refused) -> None:
    """Say it, and read on for a moment what the agent may still be sending; none of it goes anywhere."""
    writer.write(refusal(refused))
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await writer.drain()
            writer.write_eof()
            while await reader.read(CHUNK):
                pass
