"""Asks an agent's hooks about its prompts and answers. Touches the bus alone.

Each run is a call of `tools.hook`, a child of the prompt's own: policy decides it, audit records it, and it
ends with the prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from beige.config import HookConfig
from beige.errors import BeigeError, Cancelled, Denied, Failed
from beige.messages.tools import HookCall, HookName, HookResult
from services.llm.conversation import Hook
from services.llm.hooks.chain import heard, raise_stopped, said

log = logging.getLogger("llm")
GRACE_S = 10.0
"""More than a hook may take: for policy, audit, and a tools process that is being restarted."""
HAND_OVER_S = 2.0
"""Longest time the end of a turn waits until notifications are handed over."""
MAX_REASON = 4096


class Caller(Protocol):
    """`beige.bus.Request`: makes calls as children of the one being served."""

    async def call(self, method: str, body: Any, **options: Any) -> Any: ...


class Reviewer:
    """The hooks of one prompt. A context manager: at its end what observers are told is handed over, unless
    the prompt was cancelled."""

    def __init__(
        self, caller: Caller, hooks: Sequence[HookConfig], about: Mapping[str, str], sender: str = ""
    ) -> None:
        """`about` goes into the log with each failure. `sender`: who asked, as the channel told."""
        self._caller, self._hooks, self._about, self._sender = caller, hooks, about, sender
        self._telling: set[asyncio.Task[None]] = set()

    def listeners(self, hook: HookName) -> list[HookConfig]:
        return [entry for entry in self._hooks if hook in entry.on]

    def deciding(self, hook: HookName) -> list[str]:
        """The plugins whose word counts, in order."""
        return [entry.plugin for entry in self.listeners(hook) if not entry.observe]

    @property
    def attends(self) -> bool:
        """Somebody listens to answers, or to who gives them."""
        return any(hook in entry.on for entry in self._hooks for hook in ("postResponse", "modelSwitched"))

    async def review(self, hook: HookName, text: str, model: str) -> list[Hook]:
        """What each made of it, in order, up to the first that stops it. Raises Cancelled alone, when the
        prompt itself is over."""
        found: list[Hook] = []
        for entry in self.listeners(hook):
            call = HookCall(entry.plugin, hook, text, model=model, sender=self._sender, tell=entry.observe)
            if entry.observe:
                self._tell(entry, call)
                continue
            found.append(await self._ask(entry, call))
            if not found[-1].passed:
                break
            text = found[-1].text if found[-1].state == "replaced" else text
        return found

    def switched(self, model: str, previous: str, reason: str) -> None:
        """Tell who listens that another model answers now. Waits for nobody."""
        for entry in self.listeners("modelSwitched"):
            told = HookCall(entry.plugin, "modelSwitched", model=model, sender=self._sender, tell=True)
            told.previous_model, told.reason = previous, reason[:MAX_REASON]
            self._tell(entry, told)

    async def passed(self, hook: HookName, text: str, model: str) -> tuple[str, list[Hook]]:
        """As `review`, where only the audit log remembers it: the text as it was left, too. Denied if a hook
        refused it, Failed if one failed and that stops it."""
        found = await self.review(hook, text, model)
        raise_stopped(found)
        return said(text, found), found

    async def _ask(self, entry: HookConfig, call: HookCall) -> Hook:
        answer: HookResult | BeigeError
        try:
            answer = await self._caller.call("tools.hook", call, ttl_s=entry.timeout_s + GRACE_S)
        except Cancelled:
            raise
        except BeigeError as error:
            log.warning("hook %s of plugin %s failed: %s", call.hook, call.plugin, error, extra=self._about)
            answer = error
        return heard(entry, call.hook, answer)

    def _tell(self, entry: HookConfig, call: HookCall) -> None:
        async def tell() -> None:
            try:
                await self._caller.call("tools.hook", call, ttl_s=GRACE_S)
            except BeigeError as error:
                log.warning(
                    "plugin %s was not told of %s: %s", call.plugin, call.hook, error, extra=self._about
                )

        task = asyncio.create_task(tell(), name=f"tell {entry.plugin}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def __aenter__(self) -> Reviewer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        telling = list(self._telling)
        try:
            if telling and (error is None or isinstance(error, Failed | Denied)):
                await asyncio.wait(telling, timeout=HAND_OVER_S)
        finally:
            for task in telling:
                task.cancel()
            await asyncio.gather(*telling, return_exceptions=True)
