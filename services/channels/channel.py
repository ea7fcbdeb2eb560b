"""One channel of the configuration: its process, its desk, and what operators are told of it."""

from __future__ import annotations

import logging

from beige.bus import Bus
from beige.config import Config
from beige.messages.channels import ChannelInfo
from beige.paths import Home, private_directory
from beige.pluginhost.life import Life
from beige.plugins import channel_owners, load_manifest, resolve_plugin_dir
from services.channels import frames
from services.channels.conversations import Conversations
from services.channels.desk import Desk
from services.channels.lanes import Room
from services.channels.link import Link


class Channel:
    def __init__(self, load: frames.Load, desk: Desk, log: logging.Logger) -> None:
        self._load, self._desk = load, desk
        self._life = Life(load.channel, load, load.data_dir, log, lambda on_end: Link(desk, log, on_end))

    async def start(self) -> None:
        """Returns when its plugin is loaded, or known not to be."""
        await self._life.start()

    async def close(self) -> None:
        await self._life.close()

    def info(self) -> ChannelInfo:
        life, load = self._life, self._load
        state = ChannelInfo(load.channel, load.adapter, list(load.agents), "starting", life.ending)
        if life.problem:
            state.state, state.problem = "failed", life.problem
        elif life.child is not None:
            state.state, state.prompts = "up", self._desk.prompts
        return state


def channel(config: Config, name: str, home: Home, bus: Bus, room: Room, log: logging.Logger) -> Channel:
    """The channel `name`, not started. The directory for all of them is there."""
    settings, log = config.channels[name], log.getChild(name)
    adapter = settings.adapter or name
    directories = {key: resolve_plugin_dir(home, plugin) for key, plugin in config.plugins.items()}
    manifests = {key: load_manifest(directory, key) for key, directory in directories.items()}
    plugin = channel_owners(manifests.values())[adapter]
    data_dir = home.data / "channels" / name
    private_directory(data_dir)
    load = frames.Load(
        plugin, str(directories[plugin]), str(data_dir), manifests[plugin].provides,
        adapter, name, settings.agents, settings.config,
    )  # fmt: skip
    desk = Desk(name, settings, bus, Conversations(name, data_dir.with_suffix(".sqlite3")), room, log)
    return Channel(load, desk, log)
