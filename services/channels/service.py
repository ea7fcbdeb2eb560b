"""The channels process: each channel of the configuration in a process of its own, its asks on the bus."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os

from beige.bus import Bus
from beige.config import Config, load
from beige.errors import Unavailable
from beige.paths import Home, private_directory
from beige.pluginhost.life import Life
from beige.plugins import channel_owners, load_manifest, resolve_plugin_dir
from beige.process import Context
from services.channels import frames
from services.channels.conversations import Conversations
from services.channels.desk import Desk
from services.channels.lanes import Room
from services.channels.link import Link


async def main(context: Context) -> None:
    """A channel that doesn't load harms no other."""
    config = load(context.home, secrets=frozenset({"channels"}))
    private_directory(context.home.data)
    private_directory(context.home.data / "channels")
    alone = _only_one(context.home)
    bus = Bus(context.home, context.user)
    room = Room()
    channels = [_channel(config, name, context.home, bus, room, context.log) for name in config.channels]
    try:
        await bus.start()
        await asyncio.gather(*(channel.start() for channel in channels))
        context.ready()
        await context.stop.wait()
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
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


def _channel(config: Config, name: str, home: Home, bus: Bus, room: Room, log: logging.Logger) -> Life[Link]:
    settings = config.channels[name]
    adapter = settings.adapter or name
    log = log.getChild(name)
    manifests = [
        load_manifest(resolve_plugin_dir(home, plugin), key) for key, plugin in config.plugins.items()
    ]
    plugin = channel_owners(manifests)[adapter]
    data_dir = home.data / "channels" / name
    private_directory(data_dir)
    manifest = next(manifest for manifest in manifests if manifest.name == plugin)
    load = frames.Load(
        plugin, str(resolve_plugin_dir(home, config.plugins[plugin])), str(data_dir), manifest.provides,
        adapter, name, settings.agents, settings.config,
    )  # fmt: skip
    desk = Desk(name, settings, bus, Conversations(name, data_dir.with_suffix(".sqlite3")), room, log)
    return Life(name, load, str(data_dir), log, lambda on_end: Link(desk, log, on_end))
