"""The socket an agent's executor dials: who is let in, and nobody else.

`exec.sock` lies in the directory mounted into the container, so the agent's own processes can
connect to it too. A connection is admitted only if the kernel says (SO_PEERCRED) that its peer is
the container's first process; everybody else is closed before a byte is read. Flooding the socket
costs the flooder's own container only: accepting pauses after each refusal.
Tests: `tests/unit/sandbox/test_listener.py`, `tests/docker/test_sandbox_identity.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from beige.paths import private_directory
from services.sandbox.executor import ExecutorChannel

HELLO_S = 5.0
"""An admitted peer that has not said HELLO after so long is closed."""
IDENTITY_WAIT_S = 30.0
"""How long an early connection (the container dials before the engine told us its pid) may wait."""
MAX_WAITING = 4
PAUSE_S = 0.02
"""After a refusal: at most 50 refusals per second and agent."""
BACKLOG = 16
DIRECTORY_MODE = 0o711
"""uid 64000 must be able to reach the sockets, not to list or change the directory."""


@dataclass(frozen=True)
class Peer:
    """The kernel's word about who connected."""

    pid: int
    uid: int
    cgroup: str = ""
    """Content of the peer's /proc/<pid>/cgroup, "" if unreadable."""


@dataclass(frozen=True)
class Identity:
    """Which container the executor must be in."""

    container: str
    pid: int
    """State.Pid of the container on this host."""
    exact: bool = True
    """The runtime shows real pids (runc, crun). Under gVisor the peer is the sandbox's own helper
    process, and only its cgroup tells which container it serves."""


def admits(identity: Identity, peer: Peer, admitted: bool) -> bool:
    """Is this peer the container's executor? `admitted`: it was here already, and may be gone.

    Stops an agent process that dials exec.sock to take the place of the executor: it has another
    pid than PID 1. Where pids say nothing (gVisor) the first connection counts and no other: until it is
    made no command runs, so nobody but PID 1 is inside. Later ones may be anybody's, who stopped PID 1
    first (`tests/docker/test_gvisor.py`); such a container is replaced when its connection is lost.
    """
    if peer.pid <= 0:
        return False
    if identity.exact:
        return peer.pid == identity.pid
    return not admitted and identity.container in peer.cgroup


def peer_of(connection: socket.socket) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    cgroup = ""
    with suppress(OSError):
        cgroup = Path(f"/proc/{pid}/cgroup").read_text()[:65536]
    return Peer(pid, uid, cgroup)


class ExecListener:
    """Listens for one agent's executor and holds its connection."""

    def __init__(self, path: Path, log: logging.Logger, *, hello_s: float = HELLO_S) -> None:
        self._path, self._log, self._hello_s = path, log, hello_s
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._admitting: set[asyncio.Task[None]] = set()
        self._identity: Identity | None = None
        self._had_executor = False
        """Of this identity."""
        self._identified = asyncio.Event()
        self._channel: ExecutorChannel | None = None
        self._arrived = asyncio.Event()
        self.refused = 0

    @property
    def channel(self) -> ExecutorChannel | None:
        """The connected executor, if it is alive."""
        return self._channel if self._channel is not None and self._channel.alive else None

    @property
    def last_lost(self) -> str:
        """Why the last executor's connection ended; empty if none did."""
        return self._channel.why_lost if self._channel is not None else ""

    def start(self) -> None:
        """Bind and accept. Idempotent."""
        if self._socket is not None:
            return
        loop = asyncio.get_running_loop()
        self._socket = _bind(self._path)
        self._accepting = loop.create_task(self._accept(self._socket), name=f"accept-{self._path}")

    def forget(self) -> None:
        """The container is about to change: nobody is admitted until `expect`."""
        self._identity = None
        self._identified.clear()

    def expect(self, identity: Identity) -> None:
        if identity != self._identity:
            self._had_executor = False
        self._identity = identity
        self._identified.set()

    async def connected(self, timeout_s: float) -> ExecutorChannel | None:
        """The executor's channel; None if it did not come in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.channel is None:
                    self._arrived.clear()
                    await self._arrived.wait()
        return self.channel

    async def disconnect(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def close(self) -> None:
        tasks = [task for task in (self._accepting, *self._admitting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.disconnect()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:  # e.g. out of descriptors: not the end of this listener
                self._log.warning("accepting on %s failed: %s", self._path, error)
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._admitting) >= MAX_WAITING:
                await self._refuse(connection, "too many connections wait to be admitted")
            else:
                await self._judge(connection)

    async def _judge(self, connection: socket.socket) -> None:
        peer = peer_of(connection)
        if self._identity is not None and not self._admitted(peer):
            await self._refuse(connection, f"pid {peer.pid} is not the executor")
            return
        task = asyncio.create_task(self._admit(connection, peer), name=f"admit-{peer.pid}")
        self._admitting.add(task)
        task.add_done_callback(self._admitting.discard)

    def _admitted(self, peer: Peer) -> bool:
        return self._identity is not None and admits(self._identity, peer, self._had_executor)

    async def _refuse(self, connection: socket.socket, why: str) -> None:
        connection.close()
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # 1, 2, 4, 8 ...: an agent can't fill the log
            self._log.warning("refused a connection to %s: %s (%d so far)", self._path, why, self.refused)
        await asyncio.sleep(PAUSE_S)

    async def _admit(self, connection: socket.socket, peer: Peer) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDENTITY_WAIT_S):
                    await self._identified.wait()
        except asyncio.CancelledError:
            connection.close()
            raise
        if self._admitted(peer):
            await self._welcome(connection)
        else:
            await self._refuse(connection, f"pid {peer.pid} is not the executor")

    async def _welcome(self, connection: socket.socket) -> None:
        """From here on the channel's transport owns the connection."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.connect_accepted_socket(ExecutorChannel, connection)
        try:
            async with asyncio.timeout(self._hello_s):
                await channel.ready()
        except TimeoutError:
            await channel.close()
        except asyncio.CancelledError:
            await channel.close()
            raise
        if channel.alive:
            await self.disconnect()
            self._channel, self._had_executor = channel, True
            self._arrived.set()
        else:
            self._log.warning("the executor of %s was not accepted: %s", self._path, channel.why_lost)


def _bind(path: Path) -> socket.socket:
    private_directory(path.parent, DIRECTORY_MODE)
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.setblocking(False)
        listening.bind(str(path))
        path.chmod(0o666)  # the directory above is private; inside the container only SO_PEERCRED decides
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
