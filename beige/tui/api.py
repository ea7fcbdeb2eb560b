"""Touches the network: this client's requests to the HTTP API (docs/http-api.md). Nothing else does."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from beige.errors import Denied, Malformed, TooLarge
from beige.tui.sse import Decoder, ServerEvent

MAX_ANSWER = 64 * 1024 * 1024
CONNECT_S, ANSWER_S, SILENCE_S = 5.0, 30.0, 60.0
"""Until a connection stands; until a short answer is there; the longest silence of a stream, after which
it is asked for anew."""
SUMMARY_S = 600.0


class ApiError(Exception):
    """The gateway's no. `code` is stable (docs/http-api.md); `executed`: may the work have been done?"""

    def __init__(self, status: int, code: str, message: str, executed: str = "no") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.executed = status, code, message, executed


class Away(Exception):
    """There is no connection, or it broke. `sent`: the request may have arrived."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


def check_url(url: str) -> str:
    """Malformed for an address that can't be meant; Denied for one that would show the token to the
    network on the way (`tests/unit/tui/test_api.py`)."""
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path:
        return url
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise Malformed(f"{url!r} is not an address such as http://127.0.0.1:7433 or unix:///path")
    if parts.scheme == "http" and not _is_here(parts.hostname):
        raise Denied(f"{url}: http:// to another host shows the token on the way; use https:// or a tunnel")
    return url.rstrip("/")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class Api:
    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        local = parts.scheme == "unix"
        self._http = httpx.AsyncClient(
            base_url="http://localhost" if local else url,
            transport=httpx.AsyncHTTPTransport(uds=parts.path) if local else None,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            follow_redirects=False,
            trust_env=False,  # a proxy of the environment must not get the token
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def health(self) -> None:
        await self._json("GET", "/api/health")

    async def agents(self) -> list[dict[str, Any]]:
        return _list(await self._json("GET", "/api/agents"), "agents")

    async def models(self, agent: str) -> list[dict[str, Any]]:
        return _list(await self._json("GET", f"{_agent(agent)}/models"), "models")

    async def sessions(self, agent: str) -> list[dict[str, Any]]:
        return _list(await self._json("GET", f"{_agent(agent)}/sessions"), "sessions")

    async def create(self, agent: str) -> str:
        return str((await self._json("POST", f"{_agent(agent)}/sessions", {}))["session"])

    async def history(self, agent: str, session: str) -> list[dict[str, Any]]:
        """Every entry of the session's file; none if it has not been used yet."""
        path, more = f"{_session(agent, session)}/history", True
        entries: list[dict[str, Any]] = []
        while more:
            try:
                page = await self._json("GET", f"{path}?after={len(entries)}")
            except ApiError as error:
                if error.status == 404 and not entries:
                    return []
                raise
            found = _list(page, "entries")
            entries += found
            more = bool(page.get("more")) and bool(found)
        return entries

    async def cancel(self, agent: str, session: str) -> None:
        await self._json("POST", f"{_session(agent, session)}/cancel")

    async def compact(self, agent: str, session: str, instructions: str) -> dict[str, Any]:
        body = {"instructions": instructions} if instructions else {}
        return dict(await self._json("POST", f"{_session(agent, session)}/compact", body, SUMMARY_S))

    async def settings(
        self, agent: str, session: str, changes: dict[str, bool | str | None] | None = None
    ) -> dict[str, dict[str, Any]]:
        """`{name: {value, layer}}`; `changes` are set first, None goes back to the default."""
        method = "PATCH" if changes else "GET"
        answer = await self._json(method, f"{_session(agent, session)}/settings", changes or None)
        return dict(answer.get("settings", answer))

    async def prompt(self, agent: str, session: str, text: str) -> AsyncGenerator[ServerEvent, None]:
        """The events of a new turn. Away if the stream breaks off, ApiError if it is not begun."""
        body = {"text": text, "session": session, "stream": True}
        async for event in self._stream("POST", f"{_agent(agent)}/prompt", body, {}):
            yield event

    async def events(self, agent: str, session: str, after: str) -> AsyncGenerator[ServerEvent, None]:
        """The running or last turn's events after the one with the id `after`; "": from the first."""
        headers = {"Last-Event-ID": after} if after else {}
        async for event in self._stream("GET", f"{_session(agent, session)}/events", None, headers):
            yield event

    async def _json(self, method: str, path: str, body: Any = None, answer_s: float = ANSWER_S) -> Any:
        timeout = httpx.Timeout(answer_s, connect=CONNECT_S)
        try:
            async with self._http.stream(method, path, json=body, timeout=timeout) as response:
                data = await _read(response)
        except httpx.HTTPError as error:
            raise _away(error) from error
        if response.status_code >= 400:
            raise _error(response.status_code, data)
        try:
            return msgspec.json.decode(data)
        except ValueError as error:
            raise ApiError(response.status_code, "failed", f"{path}: the answer is no JSON") from error

    async def _stream(
        self, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> AsyncGenerator[ServerEvent, None]:
        decoder = Decoder()
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        headers = {"Accept": "text/event-stream", **headers}
        try:
            async with self._http.stream(method, path, json=body, headers=headers, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    raise _error(answer.status_code, await _read(answer))
                async for data in answer.aiter_bytes():
                    for event in decoder.feed(data):
                        yield event
        except httpx.HTTPError as error:
            raise _away(error) from error


async def _read(response: httpx.Response) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER:
            raise TooLarge(f"the gateway's answer has more than {MAX_ANSWER} bytes")
    return bytes(data)


def _error(status: int, data: bytes) -> ApiError:
    try:
        error = msgspec.json.decode(data)["error"]
        return ApiError(status, str(error["code"]), str(error["message"]), str(error.get("executed", "no")))
    except (ValueError, KeyError, TypeError):
        return ApiError(status, "failed", f"the gateway answered HTTP {status}")


def _away(error: httpx.HTTPError) -> Away:
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    return Away(str(error) or type(error).__name__, sent)


def _agent(agent: str) -> str:
    return f"/api/agents/{quote(agent, safe='')}"


def _session(agent: str, session: str) -> str:
    return f"{_agent(agent)}/sessions/{quote(session, safe='')}"


def _list(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [item for item in answer.get(name, []) if isinstance(item, dict)]
