"""The tap's two sockets: PULL from the broker (unredacted, authenticated), XPUB to operators.

The XPUB endpoint has no authentication of its own: it is a socket in the 0700 run directory. A slow
subscriber loses copies at libzmq's high-water mark; it never slows the feed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

from beige import tapevent
from beige.paths import Home
from beige.tapevent import STATE, WANT_BODIES
from services.tap.feed import Feed

SUBSCRIBER_HWM = 10_000
MAX_TOPIC = 512
BURST = 32
"""Batches taken before other work gets its turn."""


class Relay:
    """Moves what is ready on either socket; `changed` is called when what subscribers want may have
    changed (also when one more asks for the same: it waits for an answer)."""

    def __init__(self, home: Home, user: str, secret: str, feed: Feed, changed: Callable[[], None]) -> None:
        self._context: Any = zmq.Context.instance()
        self._home, self._user, self._secret = home, user, secret
        self._feed = feed
        self._changed = changed
        self._topics: set[bytes] = set()
        self._loop = asyncio.get_running_loop()
        self._pull: Any = None
        self._publisher = self._bind()

    @property
    def wanted(self) -> tuple[bool, bool]:
        """(any traffic, bodies) the present subscribers ask for."""
        on = bool(self._topics - {STATE, WANT_BODIES})
        return on, on and WANT_BODIES in self._topics

    def connect(self) -> None:
        """A new PULL socket: a refused one would never try again."""
        self._close_pull()
        self._pull = pull = self._context.socket(zmq.PULL)
        pull.linger = 0
        pull.rcvhwm = 1000
        pull.plain_username = self._user.encode()
        pull.plain_password = self._secret.encode()
        pull.reconnect_ivl, pull.reconnect_ivl_max = 50, 1000
        pull.connect(self._home.tap_feed_endpoint)
        self._loop.add_reader(pull.FD, self._drain, pull)
        self._loop.call_soon(self._drain, pull)

    def announce(self, epoch: int, on: bool, bodies: bool) -> None:
        """Tell subscribers that the broker now copies what they asked for."""
        self._publish(STATE, tapevent.encode(self._feed.state(epoch, on, bodies)))

    def close(self) -> None:
        self._close_pull()
        self._loop.remove_reader(self._publisher.FD)
        self._publisher.close(0)

    def _bind(self) -> Any:
        publisher: Any = self._context.socket(zmq.XPUB)
        publisher.linger = 0
        publisher.sndhwm = SUBSCRIBER_HWM
        publisher.maxmsgsize = MAX_TOPIC
        publisher.xpub_verbose = 1
        publisher.bind(self._home.tap_endpoint)
        self._loop.add_reader(publisher.FD, self._subscriptions)
        self._loop.call_soon(self._subscriptions)
        return publisher

    def _drain(self, pull: Any) -> None:
        """Edge-triggered: read until nothing is left, or come back by ourselves."""
        if pull is not self._pull:
            return
        for _ in range(BURST):
            try:
                frames = pull.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 1:
                for topic, event in self._feed.events(frames[0]):
                    self._publish(topic.encode(), tapevent.encode(event))
        self._loop.call_soon(self._drain, pull)

    def _publish(self, topic: bytes, payload: bytes) -> None:
        try:
            self._publisher.send_multipart([topic, payload], zmq.NOBLOCK)
        except zmq.Again:
            pass  # XPUB drops per subscriber by itself; each computes its loss from topic_seq
        if self._publisher.EVENTS & zmq.POLLIN:
            self._loop.call_soon(self._subscriptions)

    def _subscriptions(self) -> None:
        changed = False
        while not self._publisher.closed and self._publisher.EVENTS & zmq.POLLIN:
            frames = self._publisher.recv_multipart(zmq.NOBLOCK)
            changed |= self._subscription(frames)
        if changed:
            self._changed()

    def _subscription(self, frames: list[bytes]) -> bool:
        message = frames[0]
        if len(frames) != 1 or message[:1] not in (b"\0", b"\1"):
            return False
        if message[0]:
            self._topics.add(message[1:])
        else:
            self._topics.discard(message[1:])
        return True

    def _close_pull(self) -> None:
        if self._pull is not None:
            self._loop.remove_reader(self._pull.FD)
            self._pull.close(0)
            self._pull = None
