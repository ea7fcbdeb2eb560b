"""Asks policy for the right to call a model, and tells it how the call went. Touches the bus alone.

A lease is a call of `policy.lease` that stays open: as a child of the prompt's call, so that its slot
comes back whatever happens to the prompt or to this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import cast

from beige.errors import BeigeError, Cancelled, PeerLost
from beige.messages import encode
from beige.messages.policy import LeaseItem, LeaseReport, LeaseRequest, LeaseResult
from beige.wire import MAX_TTL_S
from services.llm.providers.failures import ModelError
from services.llm.toolbox import Caller, OpenCall

log = logging.getLogger("llm")
REPORT_S = 5.0
"""Longest wait for policy to take a report."""
TRIES = 5
"""How often a lease is asked for while policy processes come and go."""


class Cooling(Exception):
    """The model must not be called for `left_s` seconds more."""

    def __init__(self, left_s: float, reason: str) -> None:
        super().__init__(reason)
        self.left_s = left_s


class Lease:
    """The right to make one call, until it is reported or its context is left."""

    def __init__(self, stream: OpenCall) -> None:
        self._stream = stream

    async def report(self, report: LeaseReport) -> float:
        """Give it back. The seconds the model must not be called now; 0, too, if policy can't be told:
        the answer is worth more than the report."""
        try:
            async with asyncio.timeout(REPORT_S):
                await self._stream.send(encode(report))
                await self._stream.end()
                result: LeaseResult = await self._stream.result()
                return result.cooling_s
        except (BeigeError, TimeoutError) as error:
            log.warning("a lease's report was not taken: %s", error or "timeout")
            return 0.0


def report_of(error: ModelError) -> LeaseReport:
    return LeaseReport("failed", error.kind, error.status, error.retry_after_s)


class Leases:
    """The leases of one prompt, one at a time."""

    def __init__(self, caller: Caller, waiting: Callable[[str], Awaitable[None]]) -> None:
        """`caller`: the prompt's request. `waiting` is told, in words, when there is no free slot."""
        self._caller, self._waiting = caller, waiting

    @asynccontextmanager
    async def take(self, provider: str, model: str) -> AsyncIterator[Lease]:
        """Wait for a slot, however long. Raises Cooling; ModelError when policy says no or is not there."""
        async with contextlib.AsyncExitStack() as stack:
            yield Lease(await self._take(stack, LeaseRequest(provider, model)))

    async def _take(self, stack: contextlib.AsyncExitStack, body: LeaseRequest) -> OpenCall:
        """Nothing was called yet, so a policy process that went away costs only the place in the line.
        A prompt that is cancelled itself learns it by CancelledError."""
        lost: BeigeError | None = None
        for _ in range(TRIES):
            try:
                opened = self._caller.open("policy.lease", body, ttl_s=MAX_TTL_S)
                stream = await stack.enter_async_context(opened)
                await self._granted(stream, body.provider)
                return stream
            except (PeerLost, Cancelled) as error:
                lost = error
            except BeigeError as error:
                raise _no_lease(body, error) from error
        raise _no_lease(body, lost)

    async def _granted(self, stream: OpenCall, provider: str) -> None:
        async with aclosing(cast("AsyncGenerator[LeaseItem, None]", aiter(stream))) as items:
            async for item in items:
                if item.state == "granted":
                    return
                line = f" behind {item.ahead} other calls" if item.ahead else ""
                await self._waiting(f"waiting{line} for a free slot of provider {provider!r} (concurrency)")
        result: LeaseResult = await stream.result()
        raise Cooling(result.cooling_s, result.reason)


def _no_lease(body: LeaseRequest, error: BeigeError | None) -> ModelError:
    return ModelError("not_leased", f"{body.provider}/{body.model}: policy did not let us call it: {error}")
