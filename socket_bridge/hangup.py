"""Notices that a client is gone when nothing is being read from it. Touches one epoll instance.

A client that only shut down its writing side (`... | nc -U gateway.sock`) still waits for answers; one
that closed does not. Reading tells both the same, end of file; only the kernel's HUP tells them apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable


class HangupWatch:
    """Calls back once when the other end of a socket is closed for good."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._gone: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def watch(self, descriptor: int, gone: Callable[[], None]) -> None:
        """Idempotent. `gone` may be called at the next turn of the loop."""
        if descriptor not in self._gone:
            self._gone[descriptor] = gone
            self._epoll.register(descriptor, 0)  # HUP and ERR are always reported

    def forget(self, descriptor: int) -> None:
        """Before the descriptor is closed, or after: the kernel forgets a closed one by itself."""
        if self._gone.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._gone.clear()

    def _ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            gone = self._gone.get(descriptor)
            self.forget(descriptor)
            if gone is not None:
                gone()
