"""One agent's egress socket on disk: made where the agent has egress, removed where it has not."""

from __future__ import annotations

import asyncio
import contextlib

from beige.paths import Home, private_directory
from socket_bridge.egress import CHUNK, Door
from socket_bridge.listener import BACKLOG, DIRECTORY_MODE, bind

TEMPORARY = ".eg.new"


class EgressListener:
    """`open`, and later `close`."""

    def __init__(self, home: Home, door: Door) -> None:
        self._path = home.egress_socket(door.agent)
        self._door = door
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def open(self) -> None:
        """ConfigError if the directory isn't ours."""
        private_directory(self._path.parent, DIRECTORY_MODE)
        listening = bind(self._path, TEMPORARY)
        self._inode = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(
            self._door.serve, sock=listening, backlog=BACKLOG, limit=CHUNK
        )

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        await self._door.close()
        await self._server.wait_closed()


def remove_stale(home: Home, agent: str) -> None:
    """An agent that has egress no longer has no socket either."""
    home.egress_socket(agent).unlink(missing_ok=True)
