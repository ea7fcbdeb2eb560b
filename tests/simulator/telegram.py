"""A server on loopback that speaks the Bot API's wire format, in its own thread.

    with BotServer() as bot:
        bot.say("hello", user=7)
        bot.wait_for(lambda: bot.texts() == ["You said: hello"])

It refuses what Telegram refuses: a wrong token, two pollers at once, texts that are empty or too long,
unknown methods. `fail` makes the next calls of a method go wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = "123456:telegram-canary-0123456789"
CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
METHODS = ("getMe", "getUpdates", "sendMessage", "sendChatAction", "setMyCommands", "deleteMyCommands")


def failure(code: int, description: str, **parameters: Any) -> dict[str, Any]:
    more = {"parameters": parameters} if parameters else {}
    return {"ok": False, "error_code": code, "description": description, **more}


class BotServer:
    """Thread-safe."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.sent: list[dict[str, Any]] = []
        """What `sendMessage` was called with, where it worked."""
        self.pending: list[dict[str, Any]] = []
        """Updates that are not confirmed."""
        self._failures: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._numbers = itertools.count(1000)
        self._changed = threading.Condition()
        self._poll = 0
        self._woken: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        app = Starlette(routes=[Route("/bot{token}/{method}", self._serve, methods=["POST"])])
        config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="bot api")

    # --- for tests ------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def say(
        self, text: Any, user: int = 7, chat: int | None = None, kind: str = "private", **more: Any
    ) -> int:
        """Somebody writes; the update's number."""
        with self._changed:
            number = next(self._numbers)
            message = {
                "message_id": number * 2,
                "date": 1,
                "from": {"id": user, "is_bot": False, "first_name": f"User {user}"},
                "chat": {"id": user if chat is None else chat, "type": kind},
                **({} if text is None else {"text": text}),
                **more,
            }
            self.pending.append({"update_id": number, "message": message})
        self._wake()
        return number

    def fail(self, method: str, *answers: Any) -> None:
        """Answers (`failure(...)`, or text that is no answer of the API) of the next calls."""
        with self._changed:
            self._failures[method].extend(answers)
        self._wake()

    def texts(self, chat: int = 7) -> list[str]:
        return [message["text"] for message in self.sent if message["chat_id"] == chat]

    def asked(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.calls if name == method]

    def clear(self) -> None:
        with self._changed:
            self.calls.clear()
            self.sent.clear()
            self._failures.clear()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"never so; sent: {self.sent}, called: {self.calls[-20:]}")

    def __enter__(self) -> BotServer:
        self._thread.start()
        poll = threading.Event()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            poll.wait(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._wake()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if self._loop is not None and self._woken is not None:
            self._loop.call_soon_threadsafe(self._woken.set)

    # --- in the server's thread -------------------------------------------------------------------------

    async def _serve(self, request: Request) -> Response:
        self._loop = asyncio.get_running_loop()
        method, params = request.path_params["method"], await request.json()
        answer = await self._answered(request.path_params["token"], method, params)
        if isinstance(answer, str):
            return Response(answer, 502, media_type="text/html")
        return JSONResponse(answer, answer.get("error_code", 200))

    async def _answered(self, token: str, method: str, params: dict[str, Any]) -> Any:
        if token != TOKEN:
            return failure(401, "Unauthorized")
        if method not in METHODS:
            return failure(404, "Not Found")
        with self._changed:
            self.calls.append((method, params))
            failing = self._failures[method].popleft() if self._failures[method] else None
            self._changed.notify_all()
        if failing is not None:
            return failing
        if method == "getUpdates":
            return await self._updates(params)
        return self._result(method, params)

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "getMe":
            return {
                "ok": True,
                "result": {"id": 1, "is_bot": True, "first_name": "B", "username": "test_bot"},
            }
        if method == "sendMessage":
            text = params["text"]
            if not text.strip():
                return failure(400, "Bad Request: message text is empty")
            if len(text.encode("utf-16-le")) > 2 * 4096:
                return failure(400, "Bad Request: message is too long")
            with self._changed:
                self.sent.append(params)
                self._changed.notify_all()
            return {"ok": True, "result": {"message_id": len(self.sent), "date": 1, "chat": {"id": 1}}}
        return {"ok": True, "result": True}

    async def _updates(self, params: dict[str, Any]) -> dict[str, Any]:
        self._poll += 1
        if self._woken is not None:
            self._woken.set()
        mine, woken = self._poll, asyncio.Event()
        self._woken = woken
        if params.get("offset"):
            with self._changed:
                self.pending = [u for u in self.pending if u["update_id"] >= params["offset"]]
                self._changed.notify_all()
        end = asyncio.get_running_loop().time() + params.get("timeout", 0)
        while True:
            if mine != self._poll:
                return failure(409, CONFLICT)
            if self._failures["getUpdates"]:
                return dict(self._failures["getUpdates"].popleft())
            with self._changed:
                found = self.pending[: params.get("limit", 100)]
            left = end - asyncio.get_running_loop().time()
            if found or left <= 0 or self._server.should_exit:
                return {"ok": True, "result": json.loads(json.dumps(found))}
            woken.clear()
            try:
                async with asyncio.timeout(left):
                    await woken.wait()
            except TimeoutError:
                pass
