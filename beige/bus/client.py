"""`Bus`: a process's one connection to the broker, for calling and for serving.

Every call ends: with its reply, or with a `BeigeError` that says whether it may have been executed.
Not thread-safe: one event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

import msgspec
import zmq

from beige import messages, wire
from beige.bus.credit import Receiver, Sender
from beige.bus.serving import Handler, HopHandler, HopReply, Request, Server
from beige.bus.session import Session
from beige.errors import BeigeError, Cancelled, DeadlineExceeded, PeerLost, TooLarge, Unavailable, from_wire
from beige.keys import read_seal_key, read_secret
from beige.paths import Home
from beige.wire import Header

__all__ = ["Bus", "Handler", "HopHandler", "HopReply", "Request", "Stream"]

GRACE_S = 0.5
"""The broker answers at the deadline; only then do we give up by ourselves."""
NO_WELCOME_S = 5.0
NO_BROKER_S = 5.0
"""How long a call waits for a connection; as long as the broker waits for a service."""
RECONNECT_S = (0.01, 1.0)
REFUSED_RETRY_S = 2.0
log = logging.getLogger("bus")
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def _decode(kind: type[Any] | None, body: bytes) -> Any:
    if kind is None or kind is bytes:
        return body
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(body)


class Bus:
    """See `beige/bus/API.md`."""

    def __init__(self, home: Home, user: str, *, endpoint: str | None = None) -> None:
        self.home, self.user = home, user
        self._endpoint = endpoint or home.bus_endpoint
        self._secret = read_secret(home, user)
        self._context: Any = zmq.Context.instance()
        self._session: Session | None = None
        self._up = asyncio.Event()
        self._server: Server | None = None
        self._drain_s = 5.0
        self._pending: dict[int, Stream] = {}
        self._ids = itertools.count(1)
        self._backoff = RECONNECT_S[0]
        self._closing = False
        self._heartbeats: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._last_loss = "never connected"
        self.epoch = 0
        self.on_session: Callable[[int], Awaitable[None] | None] | None = None

    # --- life ------------------------------------------------------------------------------------

    def serve(
        self,
        service: str,
        handlers: Mapping[str, Handler] | None = None,
        *,
        capacity: int = 64,
        hops: Mapping[int, HopHandler] | None = None,
        drain_s: float = 5.0,
    ) -> None:
        """Announce `service` at the next session. Call before `start`."""
        handlers = handlers or {}
        keys = None
        if any(method in messages.GOVERNED for method in handlers):
            keys = (read_seal_key(self.home, "verdict"), read_seal_key(self.home, "receipt"))
        self._server = Server(self, service, handlers, hops or {}, capacity, keys)
        self._drain_s = drain_s

    async def start(self, timeout_s: float = 10.0) -> None:
        """Connect; returns once welcomed. Unavailable if that takes longer than `timeout_s`."""
        self._heartbeats = asyncio.get_running_loop().create_task(self._beat(), name="bus heartbeats")
        self._connect()
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            await self.close()
            raise Unavailable(f"no broker for this home ({self._last_loss}); is beige up?") from None

    async def close(self) -> None:
        """DRAIN, finish or cancel what is being served, BYE."""
        if self._closing:
            return
        if self._server is not None and self._up.is_set():
            self.post(Header(type=wire.DRAIN))
            await self._server.drain(self._drain_s)
        self._closing = True
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        if self._session is not None and not self._session.closed:
            self.post(Header(type=wire.BYE))
            self._session.close(linger_ms=200)
        self._fail_pending(Cancelled("the bus connection was closed"))
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def __aenter__(self) -> Bus:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- calling ---------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether there is a session with the broker now."""
        return self._up.is_set()

    async def call(self, method: str, body: msgspec.Struct, **options: Any) -> Any:
        """Call and wait for the decoded reply. `options` as for `open`. With `idem` set, a call whose
        connection was lost is made again inside its deadline."""
        idem, ttl_s = options.get("idem", ""), options.get("ttl_s", wire.DEFAULT_TTL_S)
        end = time.monotonic() + ttl_s
        while True:
            options["ttl_s"] = max(0.001, end - time.monotonic())
            stream = self.open(method, body, window_items=0, window_bytes=0, **options)
            try:
                async with stream:
                    return await stream.result()
            except PeerLost:
                if not idem or time.monotonic() >= end:
                    raise

    def open(
        self,
        method: str,
        body: msgspec.Struct,
        *,
        agent: str = "",
        session: str = "",
        channel: str = "",
        token: str = "",
        key: str = "",
        idem: str = "",
        ttl_s: float = wire.DEFAULT_TTL_S,
        trace: str = "",
        parent: int = 0,
        window_items: int = wire.WINDOW_ITEMS,
        window_bytes: int = wire.WINDOW_BYTES,
    ) -> Stream:
        """A call with a stream. Entering it sends the call; leaving it early cancels."""
        service, _, name = method.partition(".")
        header = Header(
            type=wire.CALL, service=service, method=name, agent=agent, session=session, channel=channel,
            token=token, key=key, idem=idem, trace=trace, parent=parent, credit=window_items,
            credit_bytes=window_bytes,
        )  # fmt: skip
        return Stream(self, method, header, messages.encode(body), ttl_s)

    # --- used by Stream and Request -----------------------------------------------------------

    def post(self, header: Header, body: bytes = b"", *, session: bool = False) -> None:
        """Put one message on the current session; `session`: drop it if there is none."""
        if self._session is not None:
            self._session.send(header, body)
        elif not session:
            raise PeerLost("not connected to the broker", executed="no")

    async def register(self, stream: Stream, end: float) -> int:
        """Wait for a session, and give the stream its id in it. Unavailable if there is none in time."""
        if not self._up.is_set():
            try:
                async with asyncio.timeout(max(0.0, min(NO_BROKER_S, end - time.monotonic()))):
                    await self._up.wait()
            except TimeoutError:
                raise Unavailable(f"no connection to the broker ({self._last_loss})") from None
        number = next(self._ids)
        self._pending[number] = stream
        return number

    def forget(self, number: int) -> None:
        self._pending.pop(number, None)

    # --- session ---------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._closing:
            return
        self._session = Session(
            self._context, self._endpoint, self.user, self._secret,
            on_up=self._say_hello, on_message=self._message, on_lost=self._lost,
        )  # fmt: skip

    def _say_hello(self) -> None:
        server = self._server
        service, capacity = (server.service, server.capacity) if server else ("", 0)
        self.post(Header(type=wire.HELLO, service=service, credit=capacity))

    def _lost(self, why: str) -> None:
        self._last_loss = why
        self._up.clear()
        if self.epoch:
            log.warning("bus session lost", extra={"why": why})
        self._fail_pending(PeerLost(f"the connection to the broker was lost ({why})"))
        if self._server is not None:
            self._server.cancel_all()
        jitter = random.uniform(1.0, 2.0)  # noqa: S311 - no secret
        delay = REFUSED_RETRY_S if why == "refused" else self._backoff * jitter
        self._backoff = min(self._backoff * 2, RECONNECT_S[1])
        if not self._closing:
            asyncio.get_running_loop().call_later(delay, self._connect)

    def _fail_pending(self, error: BeigeError) -> None:
        pending, self._pending = self._pending, {}
        for stream in pending.values():
            stream.fail(error)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(wire.HEARTBEAT_S)
            session = self._session
            if session is None or session.closed:
                continue
            silent = time.monotonic() - session.seen
            if self._up.is_set():
                session.send(Header(type=wire.HB))
                if silent > wire.DEAD_AFTER_S:
                    session.lose("silent")
            elif silent > NO_WELCOME_S:
                session.lose("no welcome")

    # --- messages --------------------------------------------------------------------------------

    def _message(self, header: Header, body: bytes) -> None:
        kind = header.type
        if kind in (wire.REPLY, wire.ERR):
            stream = self._pending.pop(header.id, None)
            if stream is not None:
                stream.answered(header, body)
        elif kind == wire.CALL and self._server is not None:
            self._server.start(header, body)
        elif kind == wire.ITEM:
            self._item(header, body)
        elif kind == wire.CREDIT:
            self._credit(header)
        elif kind == wire.CANCEL and self._server is not None:
            self._server.cancel(header.id)
        elif kind == wire.WELCOME:
            self._welcome(header)
        elif kind == wire.HB and self._up.is_set() and header.epoch != self.epoch and self._session:
            self._session.lose("new broker")
        elif kind == wire.RESET and self._session:
            self._session.lose("reset")

    def _item(self, header: Header, body: bytes) -> None:
        if header.flags & wire.TO_WORKER:
            if self._server is not None:
                self._server.item(header, body)
        elif (stream := self._pending.get(header.id)) is not None:
            stream.down.put(body)

    def _credit(self, header: Header) -> None:
        if header.flags & wire.TO_WORKER:
            if self._server is not None:
                self._server.credit(header)
        elif (stream := self._pending.get(header.id)) is not None:
            stream.up.grant(header.credit, header.credit_bytes)

    def _welcome(self, header: Header) -> None:
        self.epoch = header.epoch
        self._backoff = RECONNECT_S[0]
        self._up.set()
        if self.on_session is not None:
            result = self.on_session(header.epoch)
            if inspect.isawaitable(result):
                task = asyncio.ensure_future(result)
                self._background.add(task)
                task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("on_session failed", exc_info=task.exception())


class Stream:
    """A call in flight. Async context manager, async iterator over its items."""

    def __init__(self, bus: Bus, method: str, header: Header, body: bytes, ttl_s: float) -> None:
        spec = messages.METHODS[method]
        self._bus, self._header, self._body = bus, header, body
        self._reply_type, self._item_type = spec.reply, spec.item
        self._end = time.monotonic() + min(ttl_s, wire.MAX_TTL_S)
        self._id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.call_name = ""
        """The call's name in the audit log, once it is answered."""
        self.down = Receiver(header.credit, header.credit_bytes, self._grant)
        self.up = Sender()
        if len(body) > wire.MAX_BODY:
            raise TooLarge(f"{method}: the request has {len(body)} bytes; the limit is {wire.MAX_BODY}")

    async def __aenter__(self) -> Stream:
        self._id = self._header.id = await self._bus.register(self, self._end)
        left = self._end - time.monotonic()
        self._header.ttl_ms = max(1, int(left * 1000))
        try:
            self._bus.post(self._header, self._body)
        except BeigeError:
            self._bus.forget(self._id)
            raise
        self._timer = asyncio.get_running_loop().call_later(left + GRACE_S, self._expired)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._result.done():
            self._cancel()
        elif not self._result.cancelled():
            self._result.exception()  # mark as seen: the caller left without asking for the result

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._items()

    async def _items(self) -> AsyncIterator[Any]:
        while (body := await self.down.get()) is not None:
            yield _decode(self._item_type, body)

    async def result(self) -> Any:
        """The decoded reply. BeigeError as the broker or the executor sent it."""
        return _decode(self._reply_type, await asyncio.shield(self._result))

    async def send(self, data: bytes) -> None:
        """One item up; waits until the executor granted credit."""
        await self.up.take(len(data))
        self._bus.post(Header(type=wire.ITEM, id=self._id, flags=wire.TO_WORKER), data)

    async def end(self) -> None:
        """Nothing more goes up. Waits until the executor takes items: what arrives before is dropped, and an
        executor that reads an empty stream would wait for its end for ever."""
        await self.up.opened()
        if not self._result.done():
            self._bus.post(Header(type=wire.ITEM, id=self._id, flags=wire.TO_WORKER | wire.END))

    # --- called by Bus -----------------------------------------------------------------------

    def answered(self, header: Header, body: bytes) -> None:
        self.call_name = header.call
        if header.type == wire.ERR:
            executed = "maybe" if header.flags & wire.EXECUTED_MAYBE else "no"
            self.fail(from_wire(header.code, wire.decode_error_body(body), executed))  # type: ignore[arg-type]
        elif not self._result.done():
            self._result.set_result(body)
            self.down.end()
            self.up.fail(Cancelled("the call is answered; nothing more is read", executed="maybe"))

    def fail(self, error: BeigeError) -> None:
        if not self._result.done():
            self._result.set_exception(error)
            self.down.end()
            self.up.fail(error)

    def _expired(self) -> None:
        self._cancel()
        self.fail(DeadlineExceeded("no answer at the deadline", executed="maybe"))

    def _cancel(self) -> None:
        self._bus.forget(self._id)
        self._bus.post(Header(type=wire.CANCEL, id=self._id), session=True)

    def _grant(self, items: int, size: int) -> None:
        if not self._result.done():
            self._bus.post(
                Header(type=wire.CREDIT, id=self._id, credit=items, credit_bytes=size, flags=wire.TO_WORKER),
                session=True,
            )
