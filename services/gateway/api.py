"""What an endpoint is, and how a request becomes its typed call and its answer a response.

One `Endpoint` says everything about a method of a path: who may call it, the types of what goes in and
out, and what it does. The router and the OpenAPI document are both made from it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from beige.config.models import NAME_PATTERN
from beige.errors import Malformed, NotFound
from beige.tokens import Scope, Token
from services.gateway.access import check_scope
from services.gateway.errors import HttpError, left

if TYPE_CHECKING:
    from services.gateway.service import Gateway

T = TypeVar("T")
CHANNEL = "http"
SESSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$"


def whole(pattern: str) -> str:
    """`pattern` to its very end: for msgspec, as for Python, `$` also stands before a last newline."""
    return pattern.removesuffix("$") + r"(?!\n)$"


_AGENT, _SESSION = re.compile(whole(NAME_PATTERN)), re.compile(whole(SESSION_PATTERN))


class Shape(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Base of the bodies and queries that are this API's own."""


class Nothing(Shape):
    """An empty query."""


@dataclass(frozen=True)
class Call:
    """One request that has been let in, with everything in it checked and typed."""

    gateway: Gateway
    request: Request
    token: Token
    agent: str = ""
    """Configured, and one the token is for."""
    session: str = ""
    """Of the right form; whether there is one, llm knows."""
    body: Any = None
    query: Any = None

    @property
    def channel(self) -> str:
        """What the audit log and the session's file say of where it came from: whose token it was."""
        return f"{CHANNEL}:{self.token.name}"

    def wants(self, media_type: str) -> bool:
        return media_type in self.request.headers.get("accept", "")

    async def bus(self, method: str, body: msgspec.Struct, *, ttl_s: float = 30.0) -> Any:
        """A call on the bus in the name of this agent and session. The reply's body."""
        return await self.gateway.bus.call(
            method, body, agent=self.agent, session=self.session, channel=self.channel, ttl_s=ttl_s
        )

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`, cancelled when the client goes away."""
        task = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._left())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise left()
            return task.result()
        finally:
            task.cancel()
            leaving.cancel()
            await asyncio.gather(task, leaving, return_exceptions=True)

    async def _left(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    summary: str
    handle: Callable[[Call], Awaitable[Any]]
    """Returns a value of the type `reply`, or a whole `Response`."""
    scopes: Sequence[Scope] = ()
    """The token needs one of them; none: any token will do."""
    public: bool = False
    body: Any = None
    query: type[Shape] = Nothing
    reply: Any = None
    status: int = 200
    stream: Any = None
    """Type of the events, if the answer may be a stream of them."""
    errors: Sequence[int] = ()
    """Statuses of errors besides those that any endpoint may answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers that matter to it, and what they say."""
    tags: Sequence[str] = ("beige",)


class AnyMethod(Route):
    """A path, whatever the method: a wrong one is answered in the API's own shape."""

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        super().__init__(path, endpoint)
        self.methods = None


def routes(gateway: Gateway, endpoints: Sequence[Endpoint]) -> list[BaseRoute]:
    """One route per path, so that a wrong method is told all that are right."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [_route(gateway, path, methods) for path, methods in by_path.items()]


def _route(gateway: Gateway, path: str, methods: dict[str, Endpoint]) -> Route:
    async def serve(request: Request) -> Response:
        endpoint = methods.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            allowed = {"allow": ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])}
            raise HttpError(405, "method_not_allowed", "not with this method", allowed)
        return await _serve(gateway, endpoint, request)

    return AnyMethod(path, serve)


async def _serve(gateway: Gateway, endpoint: Endpoint, request: Request) -> Response:
    agent, session = _names(request.path_params)
    token: Any = getattr(request.state, "token", None)
    if not endpoint.public:
        check_scope(token, endpoint.scopes, agent)
    if agent and agent not in gateway.config.agents:
        raise NotFound(f"there is no agent {agent!r}")
    query, body = _query(endpoint, request), await _body(endpoint, request)
    found = await endpoint.handle(Call(gateway, request, token, agent, session, body, query))
    if isinstance(found, Response):
        return found
    return Response(msgspec.json.encode(found), endpoint.status, media_type="application/json")


def _names(parameters: dict[str, str]) -> tuple[str, str]:
    """Stops paths that mean something else further inside: `../x`, NUL, another alphabet
    (`test_names_that_are_no_names_are_refused`)."""
    agent, session = parameters.get("agent", ""), parameters.get("session", "")
    if agent and not _AGENT.match(agent):
        raise Malformed("the agent's name has the wrong form")
    if session and not _SESSION.match(session):
        raise Malformed("the session's name has the wrong form: letters, digits, . _ : @ + -, at most 128")
    return agent, session


def _query(endpoint: Endpoint, request: Request) -> Shape:
    given = request.query_params.multi_items()
    if len(dict(given)) != len(given):
        raise Malformed("a parameter of the query is given twice")
    try:
        return msgspec.convert(dict(given), endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise Malformed(f"query: {error}") from None


async def _body(endpoint: Endpoint, request: Request) -> Any:
    """The typed body. What has none is not read, and not an error: clients send `{}` or nothing."""
    if endpoint.body is None:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "malformed", "the body must be application/json")
    try:
        data = await request.body()
    except ClientDisconnect:
        raise left() from None
    try:
        return msgspec.json.decode(data, type=endpoint.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"body: {error}") from None
    except RecursionError:
        raise Malformed("body: nested too deeply") from None


async def no_such_path(scope: HttpScope, receive: Receive, send: Send) -> None:
    raise NotFound("there is no such path: /api/openapi.json lists them")
