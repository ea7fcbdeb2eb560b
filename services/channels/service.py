"""The channels process: each channel of the configuration in a process of its own, its asks on the bus."""

from __future__ import annotations

import asyncio
import fcntl
import os

from beige.bus import Bus, Request
from beige.config import load
from beige.errors import Unavailable
from beige.messages.base import Empty
from beige.messages.channels import ChannelList
from beige.paths import Home, private_directory
from beige.process import Context
from services.channels.channel import channel
from services.channels.lanes import Room

CAPACITY = 16


async def main(context: Context) -> None:
    """A channel that doesn't load harms no other."""
    config = load(context.home, secrets=frozenset({"channels"}))
    private_directory(context.home.data)
    private_directory(context.home.data / "channels")
    alone = _only_one(context.home)
    bus, room = Bus(context.home, context.user), Room()
    channels = [channel(config, name, context.home, bus, room, context.log) for name in config.channels]

    async def listed(request: Request, body: Empty) -> ChannelList:
        return ChannelList([each.info() for each in channels])

    bus.serve("channels", {"channels.list": listed}, capacity=CAPACITY)
    try:
        await bus.start()
        await asyncio.gather(*(each.start() for each in channels))
        context.ready()
        await context.stop.wait()
    finally:
        await asyncio.gather(*(each.close() for each in channels))
        await bus.close()
        os.close(alone)


def _only_one(home: Home) -> int:
    """A lock, held until this process ends. Unavailable if another holds it: two that poll one bot would
    take each other's messages."""
    handle = os.open(home.data / "channels" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Unavailable("another channels process runs for this home; only one may") from None
    return handle
