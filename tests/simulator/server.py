"""One HTTP server on loopback that speaks Anthropic's and both of OpenAI's wire formats, in its own thread.

    with Simulator() as simulator:
        simulator.answer(reply("hello"), Refusal(429, headers={"retry-after": "7"}))
        ... a client of either API at simulator.url ...
        simulator.requests[0].body

Each request takes the next answer; `default` answers when none is left. A request that the real API
would refuse (a tool call without a result, an empty message, ...) is answered 400, as there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import h11

from tests.simulator import anthropic_wire, openai_wire, responses_wire
from tests.simulator.replies import Answer, Drip, Held, Raw, Refusal, Reply, Silence, reply

WIRES: dict[str, ModuleType] = {
    "/v1/messages": anthropic_wire,
    "/v1/chat/completions": openai_wire,
    "/v1/responses": responses_wire,
}
MAX_REQUEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class Recorded:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Simulator:
    """Thread-safe: `answer` and the lists may be used from any thread."""

    def __init__(self, default: Callable[[Recorded], Answer] | None = None) -> None:
        self.requests: list[Recorded] = []
        self.problems: list[str] = []
        """Requests that the real API would have refused."""
        self.disconnected = 0
        """Connections the client closed while an answer was under way."""
        self.in_flight = self.peak = 0
        """Requests being answered now, and the most there were at once."""
        self.port = 0
        self._answers: deque[Answer] = deque()
        self._default = default or (lambda request: reply("(the simulator has no answer left)"))
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="simulator")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, *answers: Answer) -> None:
        self._answers.extend(answers)

    def reset(self) -> None:
        """Forget what was asked and what was to be answered."""
        with self._changed:
            self.requests.clear()
            self.problems.clear()
            self._answers.clear()
            self.disconnected = 0
            self.peak = self.in_flight

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Return once `condition` holds; it is looked at whenever something happened here."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError("the simulator saw nothing of the kind")

    def __enter__(self) -> Simulator:
        self._thread.start()
        self.wait_for(lambda: self.port != 0)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the simulator did not end"

    # --- in the server's thread ------------------------------------------------------------------

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await Connection(self, reader, writer).run()
            except (ConnectionError, h11.RemoteProtocolError):
                pass  # the client was killed
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        with self._changed:
            self.port = server.sockets[0].getsockname()[1]
            self._changed.notify_all()
        await self._stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def take(self, request: Recorded, problem: str) -> Answer:
        with self._changed:
            self.requests.append(request)
            if problem:
                self.problems.append(problem)
            self._changed.notify_all()
        if problem:
            return Refusal(400, "invalid_request_error", problem)
        return self._answers.popleft() if self._answers else self._default(request)

    def count(self, change: int) -> None:
        with self._changed:
            self.in_flight += change
            self.peak = max(self.peak, self.in_flight)
            self._changed.notify_all()

    def lost(self) -> None:
        with self._changed:
            self.disconnected += 1
            self._changed.notify_all()


class Connection:
    """One client connection: requests in, answers out, one after the other."""

    def __init__(
        self, simulator: Simulator, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._simulator, self._reader, self._writer = simulator, reader, writer
        self._http = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        while (request := await self._request()) is not None:
            wire = WIRES.get(request.path.partition("?")[0])
            if wire is None:
                await self._refuse(openai_wire, Refusal(404, "not_found", f"no route {request.path}"))
            else:
                await self._answer(wire, request)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _request(self) -> Recorded | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                assert len(body) <= MAX_REQUEST
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Recorded(head.target.decode(), headers, json.loads(body or b"{}"))
            else:
                return None

    async def _answer(self, wire: ModuleType, request: Recorded) -> None:
        self._simulator.count(+1)
        try:
            answer = self._simulator.take(request, wire.problem(request.body))
            await self._give(wire, answer, request)
        finally:
            self._simulator.count(-1)

    async def _give(self, wire: ModuleType, answer: Answer, request: Recorded) -> None:
        match answer:
            case Held(held, gate):
                while not gate.acquire(blocking=False):
                    await asyncio.sleep(0.01)
                await self._stream(wire, held, request.body["model"])
            case Refusal():
                await self._refuse(wire, answer)
            case Silence():
                await self._hang()
            case Raw():
                await self._raw(answer)
            case Drip(pause_s, None):
                await self._begin_stream()
                await self._drip(itertools.repeat(b": keep-alive\n\n"), pause_s)
            case Drip(pause_s, Reply() as dripped):
                await self._begin_stream()
                await self._drip(wire.events(dripped, request.body["model"]), pause_s)
            case Reply():
                await self._stream(wire, answer, request.body["model"])

    async def _refuse(self, wire: ModuleType, refusal: Refusal) -> None:
        body = (wire.error_body(refusal) if refusal.body is None else refusal.body).encode()
        headers = {"content-type": refusal.content_type, "content-length": str(len(body)), **refusal.headers}
        await self._send(h11.Response(status_code=refusal.status, headers=list(headers.items())))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _stream(self, wire: ModuleType, answer: Reply, model: str) -> None:
        await self._begin_stream()
        for sent, event in enumerate(wire.events(answer, model)):
            if answer.fault is not None and sent >= answer.fault.after:
                return await self._fault(wire, answer)
            await self._send(h11.Data(data=event))
        await self._send(h11.EndOfMessage())

    async def _begin_stream(self) -> None:
        headers = [("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked")]
        await self._send(h11.Response(status_code=200, headers=headers))

    async def _drip(self, events: Iterable[bytes], pause_s: float) -> None:
        """Until the end, or until the client gives up."""
        gone = asyncio.ensure_future(self._reader.read(1))
        try:
            for event in events:
                if (await asyncio.wait([gone], timeout=pause_s))[0]:
                    gone.exception()
                    self._simulator.lost()
                    self._http.send_failed()
                    return
                await self._send(h11.Data(data=event))
        finally:
            gone.cancel()
        await self._send(h11.EndOfMessage())

    async def _raw(self, answer: Raw) -> None:
        headers = [("content-type", answer.content_type), ("transfer-encoding", "chunked")]
        await self._send(h11.Response(status_code=200, headers=headers))
        await self._send(h11.Data(data=answer.body))
        if answer.cut:
            self._writer.transport.abort()
            self._http.send_failed()
        else:
            await self._send(h11.EndOfMessage())

    async def _fault(self, wire: ModuleType, answer: Reply) -> None:
        assert answer.fault is not None
        match answer.fault.kind:
            case "cut":
                self._writer.transport.abort()
                self._http.send_failed()
                return
            case "hang":
                return await self._hang()
            case "malformed":
                await self._send(h11.Data(data=wire.malformed()))
            case "error_event":
                await self._send(h11.Data(data=wire.error_event(answer.fault)))
            case "end":
                pass
        await self._send(h11.EndOfMessage())

    async def _hang(self) -> None:
        """Until the client gives up. It resets the connection if it left something unread."""
        with suppress(ConnectionError):
            await self._reader.read(1)
        self._simulator.lost()
        self._http.send_failed()

    async def _send(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")
        try:
            await self._writer.drain()
        except ConnectionError:
            self._simulator.lost()
            raise
