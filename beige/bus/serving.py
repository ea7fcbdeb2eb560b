"""The serving side: decode, check seals, run the handler, answer. One task per call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from beige import messages, seals, wire
from beige.bus.credit import Receiver, Sender
from beige.errors import BeigeError, Denied, Malformed, PeerLost, TooLarge
from beige.wire import Header, Outcome

if TYPE_CHECKING:
    from beige.bus.client import Bus, Stream

log = logging.getLogger("bus")
REMEMBERED_CALLS = 20_000


@dataclass
class HopReply:
    """What policy or audit answers at its hop."""

    verdict: bytes = b""
    receipt: bytes = b""
    denied: str = ""
    """Policy: the reason. The call is answered Denied with it, once audit has recorded it."""


Handler = Callable[["Request", Any], Awaitable[Any]]
HopHandler = Callable[["Request"], Awaitable[HopReply] | HopReply]
"""What answers at once, without anything to wait for, is answered without the cost of a task."""
Answering = Callable[["Request"], Awaitable[tuple[Header, bytes]]]


class Request:
    """A call being served. Everything but `body` is the broker's word, none of it the agent's."""

    def __init__(self, bus: Bus, header: Header, body: bytes) -> None:
        self._bus = bus
        self.header, self.body = header, body
        self.service, self.method = header.service, header.method
        self.agent, self.session, self.channel = header.agent, header.session, header.channel
        self.src, self.call_name, self.parent_call = header.src, header.call, header.parent_call
        self.trace, self.token, self.hop, self.verdict = (
            header.trace,
            header.token,
            header.hop,
            header.verdict,
        )
        self.deadline = asyncio.get_running_loop().time() + header.ttl_ms / 1000
        self.outcome = Outcome()
        self.wants_items = header.credit > 0
        self.down = Sender(header.credit, header.credit_bytes)
        self.up: Receiver | None = None
        self.movable = False
        """Set by a handler while it has done nothing yet: if this process stops now, the broker gives a call
        that has an idempotency key to another one."""
        self.moved = False

    async def send(self, item: msgspec.Struct | bytes) -> None:
        """One item to the caller; waits for its credit. Nothing if it asked for no stream."""
        if not self.wants_items:
            return
        body = item if isinstance(item, bytes) else messages.encode(item)
        if len(body) > wire.MAX_BODY:
            raise TooLarge(f"a stream item has {len(body)} bytes; the limit is {wire.MAX_BODY}")
        await self.down.take(len(body))
        self._bus.post(Header(type=wire.ITEM, id=self.header.id), body)

    async def items(self) -> AsyncIterator[bytes]:
        """What the caller streams up, until its END. Credit is granted from here on."""
        receiver = self.open_upstream()
        while (body := await receiver.get()) is not None:
            yield body

    def open_upstream(self) -> Receiver:
        if self.up is None:
            self.up = Receiver(wire.WINDOW_ITEMS, wire.WINDOW_BYTES, self._grant)
            self._grant(wire.WINDOW_ITEMS, wire.WINDOW_BYTES)
        return self.up

    def _grant(self, items: int, size: int) -> None:
        self._bus.post(Header(type=wire.CREDIT, id=self.header.id, credit=items, credit_bytes=size))

    async def call(self, method: str, body: msgspec.Struct, **options: Any) -> Any:
        """As `Bus.call`, as a child of this call: agent, session and channel are inherited."""
        return await self._bus.call(method, body, parent=self.header.id, **options)

    def open(self, method: str, body: msgspec.Struct, **options: Any) -> Stream:
        return self._bus.open(method, body, parent=self.header.id, **options)


class Server:
    """Runs the handlers of one service."""

    def __init__(
        self,
        bus: Bus,
        service: str,
        handlers: Mapping[str, Handler],
        hops: Mapping[int, HopHandler],
        capacity: int,
        seal_keys: tuple[bytes, bytes] | None,
    ) -> None:
        unknown = set(handlers) - set(messages.METHODS)
        if unknown:
            raise ValueError(f"methods not in beige.messages.METHODS: {sorted(unknown)}")
        self._bus, self.service, self.capacity = bus, service, capacity
        self._handlers, self._hops, self._keys = handlers, hops, seal_keys
        self._decoders = {m: msgspec.msgpack.Decoder(messages.METHODS[m].request) for m in handlers}
        self._running: dict[int, tuple[asyncio.Task[None], Request]] = {}
        self._executed: OrderedDict[str, None] = OrderedDict()

    def start(self, header: Header, body: bytes) -> None:
        request = Request(self._bus, header, body)
        hop = self._hops.get(header.hop)
        if hop is None:
            self._begin(request, self._handle)
        else:
            self._at_hop(request, hop)

    def _at_hop(self, request: Request, hop: HopHandler) -> None:
        try:
            reply = hop(request)
        except Exception as error:
            self._answer(request, self._failure(request, error))
            return
        if isinstance(reply, HopReply):
            self._answer(request, _hop_reply(reply))
        else:
            self._begin(request, partial(_awaited, reply))

    def _begin(self, request: Request, answer: Answering) -> None:
        header = request.header
        task = asyncio.get_running_loop().create_task(
            self._serve(request, answer), name=f"{header.service}.{header.method} {header.call}"
        )
        self._running[header.id] = (task, request)

    def cancel(self, call_id: int) -> None:
        found = self._running.get(call_id)
        if found:
            task, request = found
            task.cancel()
            # One that had not begun yet never gets to its own clean-up.
            task.add_done_callback(lambda _: self._forget(request))

    def _forget(self, request: Request) -> None:
        found = self._running.get(request.header.id)
        if found is not None and found[1] is request:
            del self._running[request.header.id]

    @property
    def running(self) -> int:
        """Calls that have a task."""
        return len(self._running)

    def cancel_all(self) -> None:
        for task, request in self._running.values():
            request.down.fail(PeerLost("the connection to the broker was lost"))
            task.cancel()
        self._running.clear()

    def item(self, header: Header, body: bytes) -> None:
        found = self._running.get(header.id)
        if found and found[1].up is not None:
            if body:
                found[1].up.put(body)
            if header.flags & wire.END:
                found[1].up.end()

    def credit(self, header: Header) -> None:
        found = self._running.get(header.id)
        if found:
            found[1].down.grant(header.credit, header.credit_bytes)

    async def drain(self, limit_s: float) -> None:
        """Give back what was not begun, wait for running calls, then cancel what is left and wait for its
        clean-up."""
        for task, request in self._running.values():
            if request.movable and request.header.idem:
                request.moved = True
                task.cancel()
        tasks = [task for task, _ in self._running.values()]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=limit_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=limit_s)

    async def _serve(self, request: Request, answering: Answering) -> None:
        started = time.perf_counter()
        try:
            answer = await answering(request)
        except asyncio.CancelledError:
            answer = _error("cancelled", "cancelled", maybe=True)
        except Exception as error:
            answer = self._failure(request, error)
        finally:
            self._forget(request)
        if request.moved:
            return  # unanswered: when this session ends, the broker gives it to another process
        if request.hop in (wire.DIRECT, wire.EXECUTE):
            request.outcome.duration_ms = round((time.perf_counter() - started) * 1000, 3)
            answer[0].outcome = request.outcome
        self._answer(request, answer)

    def _failure(self, request: Request, error: Exception) -> tuple[Header, bytes]:
        """A BeigeError crosses the wire as it is; anything else says nothing of our inside."""
        if isinstance(error, BeigeError):
            return _error(error.code, str(error), maybe=error.executed == "maybe")
        about = {"call": request.header.call, "method": request.method}
        log.error("handler failed", exc_info=error, extra=about)
        return _error("failed", f"internal error in {self.service}", maybe=True)

    def _answer(self, request: Request, answer: tuple[Header, bytes]) -> None:
        reply, body = answer
        if len(body) > wire.MAX_BODY:
            message = f"the answer has {len(body)} bytes; the limit is {wire.MAX_BODY}"
            outcome = reply.outcome
            reply, body = _error("too_large", message, maybe=True)
            reply.outcome = outcome
        reply.id = request.header.id
        self._bus.post(reply, body, session=True)

    async def _handle(self, request: Request) -> tuple[Header, bytes]:
        method = f"{request.service}.{request.method}"
        handler = self._handlers.get(method)
        if handler is None or request.hop not in (wire.DIRECT, wire.EXECUTE):
            raise Malformed(f"{self.service} does not serve {method!r} at hop {request.hop}")
        if method in messages.GOVERNED:
            self._check_seals(request)
        try:
            decoded = self._decoders[method].decode(request.body)
        except wire.DECODE_ERRORS as error:
            raise Malformed(f"{method}: {error}") from None
        result = await handler(request, decoded)
        body = result if isinstance(result, bytes) else messages.encode(result)
        return Header(type=wire.REPLY), body

    def _check_seals(self, request: Request) -> None:
        """No execution without policy's verdict and audit's receipt for exactly this request, and
        none twice: stops a broker or peer in hostile hands (`tests/attacks/test_forged_seals.py`)."""
        if request.hop != wire.EXECUTE or self._keys is None:
            raise Denied("a governed method must come through the corridor")
        verdict_key, receipt_key = self._keys
        digest = seals.request_digest(request.header, request.body)
        if not seals.read_verdict(verdict_key, digest, request.verdict).allowed:
            raise Denied("policy denied this call")
        seals.check_receipt(receipt_key, digest, request.verdict, request.header.receipt)
        if request.call_name in self._executed and not request.header.idem:
            raise Denied("this call was executed already")
        self._executed[request.call_name] = None
        if len(self._executed) > REMEMBERED_CALLS:
            self._executed.popitem(last=False)


async def _awaited(reply: Awaitable[HopReply], _: Request) -> tuple[Header, bytes]:
    return _hop_reply(await reply)


def _hop_reply(reply: HopReply) -> tuple[Header, bytes]:
    if reply.denied:
        header = Header(type=wire.ERR, code="denied", verdict=reply.verdict)
        return header, wire.error_body(reply.denied)
    return Header(type=wire.REPLY, verdict=reply.verdict, receipt=reply.receipt), b""


def _error(code: str, message: str, *, maybe: bool) -> tuple[Header, bytes]:
    flags = wire.EXECUTED_MAYBE if maybe else 0
    return Header(type=wire.ERR, code=code, flags=flags), wire.error_body(message)
