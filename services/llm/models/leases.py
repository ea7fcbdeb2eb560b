"""Asks policy for the right to call a model, and tells it how the call went. Touches the bus alone.

A lease is a call of `policy.lease` that stays open: as a child of the prompt's call, so that its slot
comes back whatever happens to the prompt or to this process. When policy is restarted during an answer,
the lease is taken up again with the new process, so that the answer goes on being counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import cast

import msgspec

from beige.errors import BeigeError, Cancelled, PeerLost, Unavailable
from beige.messages import encode
from beige.messages.policy import LeaseItem, LeaseReport, LeaseRequest, LeaseResult
from beige.wire import MAX_TTL_S
from services.llm.providers.failures import ModelError
from services.llm.toolbox import Caller, OpenCall

log = logging.getLogger("llm")
REPORT_S = 10.0
"""Longest wait for policy to take a report, a restart of it included."""
TRIES = 5
"""How often a lease is asked for, or taken up again, while policy processes come and go."""


class Cooling(Exception):
    """The model must not be called for `left_s` seconds more."""

    def __init__(self, left_s: float, reason: str) -> None:
        super().__init__(reason)
        self.left_s = left_s


class Lease:
    """The right to make one call, until it is reported or given up."""

    def __init__(self, leases: Leases, body: LeaseRequest) -> None:
        self._leases, self._body = leases, body
        self._stack = contextlib.AsyncExitStack()
        self._stream: OpenCall | None = None
        self._name = ""
        self._taking_up = asyncio.Lock()
        self.max_tokens: int | None = None
        """The answer must not be longer; None: as the model's settings say."""

    async def report(self, report: LeaseReport) -> float:
        """Give it back. The seconds the model must not be called now; 0, too, if policy can't be told:
        the answer is worth more than the report."""
        try:
            async with asyncio.timeout(REPORT_S):
                while True:
                    stream = self._held()
                    try:
                        return await _reported(stream, report)
                    except PeerLost:
                        await self._take_up(stream)
        except (BeigeError, TimeoutError) as error:
            log.warning("a lease's report was not taken: %s", error or "timeout")
            return 0.0

    async def keep(self) -> None:
        """Take it up again whenever policy is restarted, until it is over."""
        with contextlib.suppress(BeigeError):  # who reports hears of it
            while True:
                stream = self._held()
                try:
                    await stream.result()
                    return
                except PeerLost:
                    await self._take_up(stream)

    async def ask(self) -> None:
        """Wait until it is granted, however long. Nothing was called yet, so a policy process that went
        away costs only the place in the line. Raises Cooling; ModelError when policy says no or is not
        there. A prompt that is cancelled itself learns it by CancelledError."""
        lost: BeigeError | None = None
        for _ in range(TRIES):
            try:
                return await self._open(self._body)
            except (PeerLost, Cancelled) as error:
                lost = error
            except ModelError:
                raise
            except BeigeError as error:
                raise _no_lease(self._body, error) from error
        raise _no_lease(self._body, lost)

    async def close(self) -> None:
        """Without a report policy charges all that was reserved."""
        await self._stack.aclose()

    async def _take_up(self, lost: OpenCall) -> None:
        """With the next policy process, which keeps it for a while. BeigeError if that fails."""
        async with self._taking_up:
            if self._stream is not lost:
                return  # done by the other one who noticed
            body = msgspec.structs.replace(self._body, holding=self._name)
            for left in reversed(range(TRIES)):
                try:
                    return await self._open(body)
                except (PeerLost, Unavailable):
                    if not left:
                        raise

    async def _open(self, body: LeaseRequest) -> None:
        await self._stack.aclose()
        opened = self._leases.caller.open("policy.lease", body, ttl_s=MAX_TTL_S)
        stream = await self._stack.enter_async_context(opened)
        granted = await self._leases.granted(stream, body)
        self._stream, self._name, self.max_tokens = stream, granted.lease, granted.max_tokens

    def _held(self) -> OpenCall:
        assert self._stream is not None, "not asked for yet"
        return self._stream


async def _reported(stream: OpenCall, report: LeaseReport) -> float:
    await stream.send(encode(report))
    await stream.end()
    result: LeaseResult = await stream.result()
    return result.cooling_s


class Leases:
    """The leases of one prompt, one at a time."""

    def __init__(self, caller: Caller, notice: Callable[[str], Awaitable[None]]) -> None:
        """`caller`: the prompt's request. `notice` is told, in words, when there is no free slot, and once
        when a budget comes to its end."""
        self.caller, self._notice = caller, notice
        self._warned = False

    @asynccontextmanager
    async def take(self, provider: str, model: str, input_tokens: int = 0) -> AsyncIterator[Lease]:
        """A lease for a request of so many tokens. Waits and raises as `Lease.ask`."""
        lease = Lease(self, LeaseRequest(provider, model, input_tokens))
        try:
            await lease.ask()
            keeper = asyncio.create_task(lease.keep(), name=f"lease of {provider}/{model}")
            try:
                yield lease
            finally:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)
        finally:
            await lease.close()

    async def granted(self, stream: OpenCall, body: LeaseRequest) -> LeaseItem:
        """The item that grants it. Raises as `Lease.ask`."""
        async with aclosing(cast("AsyncGenerator[LeaseItem, None]", aiter(stream))) as items:
            async for item in items:
                if item.state == "granted":
                    await self._warn(item.warning)
                    return item
                await self._notice(_waiting(item, body.provider))
        result: LeaseResult = await stream.result()
        if result.over_budget:
            raise ModelError("over_budget", f"{body.provider}/{body.model}: {result.reason}")
        raise Cooling(result.cooling_s, result.reason)

    async def _warn(self, warning: str) -> None:
        if warning and not self._warned:
            self._warned = True
            await self._notice(warning)


def _waiting(item: LeaseItem, provider: str) -> str:
    if item.waiting_for == "budget":
        return "waiting for calls under way to end: the budget has no room for all they may use at once"
    line = f" behind {item.ahead} other calls" if item.ahead else ""
    return f"waiting{line} for a free slot of provider {provider!r} (concurrency)"


def _no_lease(body: LeaseRequest, error: BeigeError | None) -> ModelError:
    return ModelError("not_leased", f"{body.provider}/{body.model}: policy did not let us call it: {error}")
