"""The tap process: asks the broker for copies only while somebody watches, redacts and publishes them."""

from __future__ import annotations

import asyncio
import os

from beige.bus import Bus
from beige.errors import BeigeError
from beige.keys import read_secret
from beige.messages.bus import TapRequest
from beige.process import Context
from services.tap.feed import Feed
from services.tap.relay import Relay

RETRY_S = 1.0


async def main(context: Context) -> None:
    os.umask(0o077)
    secret = read_secret(context.home, context.user)
    bus = Bus(context.home, context.user)
    changed = asyncio.Event()
    feed = Feed()
    relay = Relay(context.home, context.user, secret, feed, changed.set)

    def session(epoch: int) -> None:
        feed.broker_restarted()
        relay.connect()
        changed.set()

    bus.on_session = session
    await bus.start()
    control = asyncio.create_task(_control(bus, relay, changed), name="tap-control")
    context.ready()
    stop = asyncio.create_task(context.stop.wait(), name="tap-stop")
    await asyncio.wait([control, stop], return_when=asyncio.FIRST_COMPLETED)
    for task in (control, stop):
        task.cancel()
    results = await asyncio.gather(control, stop, return_exceptions=True)
    await bus.close()
    relay.close()
    if isinstance(results[0], Exception):
        raise results[0]


async def _control(bus: Bus, relay: Relay, changed: asyncio.Event) -> None:
    """Keep the broker's tap as the subscribers want it, and tell them once it is."""
    while True:
        await changed.wait()
        changed.clear()
        on, bodies = relay.wanted
        try:
            await bus.call("bus.tap", TapRequest(on, bodies))
        except BeigeError:
            await asyncio.sleep(RETRY_S)
            changed.set()
            continue
        relay.announce(bus.epoch, on, bodies)
