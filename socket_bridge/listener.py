"""One agent's listening socket on disk: made, replaced, linked, removed.

The socket's directory is what the container mounts, so it is kept across restarts and the socket is
replaced inside it. Who connects to it speaks for this agent, whatever the payload says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from beige.paths import Home, private_directory
from socket_bridge.connection import Connection
from socket_bridge.desk import Desk
from socket_bridge.hangup import HangupWatch

DIRECTORY_MODE = 0o711
"""The container's user must reach the sockets in it, not list or change it."""
SOCKET_MODE = 0o666
BACKLOG = 128
DRAIN_S = 2.0


class Listener:
    """`open`, and later `close`."""

    def __init__(self, home: Home, desk: Desk, hangups: HangupWatch) -> None:
        self._home, self._desk, self._hangups = home, desk, hangups
        self._path = home.gateway_socket(desk.agent)
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def open(self) -> None:
        """Replaces a socket that an earlier process left behind. ConfigError if the directory isn't ours."""
        private_directory(self._path.parent, DIRECTORY_MODE)
        listening = bind(self._path)
        self._inode = self._path.stat().st_ino
        link(self._home.socket_link(self._desk.agent), self._path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connection, sock=listening, backlog=BACKLOG)

    async def close(self) -> None:
        """Take no new request, finish those being served or cancel them, remove the socket."""
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        serving = [task for c in tuple(self._connections) if (task := c.stop_reading()) is not None]
        if serving:
            await asyncio.wait(serving, timeout=DRAIN_S)
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.gather(*serving, return_exceptions=True)
        await self._server.wait_closed()

    def _connection(self) -> Connection:
        connection = Connection(self._desk, self._hangups, self._connections.discard)
        self._connections.add(connection)
        return connection


def bind(path: Path, temporary: str = ".gw.new") -> socket.socket:
    """A bound socket at `path`, in place of whatever socket was there, at no moment without one."""
    fresh = path.with_name(temporary)
    fresh.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listening.bind(str(fresh))
        fresh.chmod(SOCKET_MODE)
        listening.listen(BACKLOG)
        os.replace(fresh, path)
    except BaseException:
        listening.close()
        raise
    return listening


def link(name: Path, target: Path) -> None:
    """Make `name` a symbolic link to `target`, replacing what it pointed to before."""
    private_directory(name.parent)
    if name.is_symlink() and Path(os.readlink(name)) == target:
        return
    fresh = name.with_name(f".{name.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    os.replace(fresh, name)
