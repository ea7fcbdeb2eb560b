"""The agent's workspace on the host: made once, given to uid 64000, never opened again.

The agent owns what is inside and can plant symlinks there, so nothing of ours follows a path into it
(read, write and patch go through the container). Ownership is changed only while the directory still
belongs to the operator, that is before any agent ran in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

from beige.config import SandboxConfig
from beige.config.sizes import size_bytes
from beige.errors import Failed
from beige.paths import Home, private_directory
from services.sandbox.engine import Engine
from services.sandbox.failure import last_line
from services.sandbox.quota import Disk, Usage
from services.sandbox.spec import UID, ownership_spec

MODE = 0o755
"""The operator may look into it; other users are kept out by `agents/`, which is 0700."""


class Workspace:
    """One agent's workspace. With `workspaceSize` it is a file system of its own (`quota.py`)."""

    def __init__(
        self,
        home: Home,
        agent: str,
        sandbox: SandboxConfig,
        engine: Engine,
        seccomp: str,
        log: logging.Logger,
    ) -> None:
        self._home, self._agent, self._image = home, agent, sandbox.image
        self._engine, self._seccomp, self._log = engine, seccomp, log
        size = sandbox.workspace_size
        self._disk = Disk(home, agent, None if size is None else size_bytes(size), log)
        self._was_full = False

    async def in_place(self) -> bool:
        """Whether a container that runs may go on: False if its file system must be mounted first."""
        return not self._disk.limited or await asyncio.to_thread(self._disk.attached)

    async def prepare(self) -> None:
        """After this the workspace exists, with its quota, and belongs to UID. Failed if it can't be made
        so. If it is not in place, no container of the agent may run."""
        if self._disk.limited:
            await asyncio.to_thread(self._disk.attach)
        path = self._home.workspace(self._agent)
        if await asyncio.to_thread(_made, path):
            return
        if os.geteuid() == 0:
            await asyncio.to_thread(give, path)
            return
        # An ordinary user can't give files away; root in a one-shot container with CHOWN can.
        spec = ownership_spec(self._home, self._agent, self._image, self._seccomp)
        code, log = await self._engine.run_helper(spec)
        if code != 0 or path.stat().st_uid != UID:
            raise Failed(
                f"the workspace of {self._agent!r} can't be given to uid {UID}: {last_line(log)}",
                executed="no",
            )

    async def detach(self) -> None:
        """Unmount the file system of a workspace whose container is gone."""
        await asyncio.to_thread(self._disk.detach)

    async def usage(self) -> Usage | None:
        """None: no quota."""
        return await asyncio.to_thread(self._disk.usage)

    async def full(self) -> str:
        """Words for the agent if there is no room left, else "". The operator gets a log line."""
        usage = await self.usage() if self._disk.limited else None
        if usage is None or not usage.full:
            self._was_full = False
            return ""
        text = (
            f"the workspace is full: {usage.used_bytes} of {usage.limit_bytes} bytes, {usage.used_files} of "
            f"{usage.limit_files} files (agents.{self._agent}.sandbox.workspaceSize); remove files"
        )
        if not self._was_full:
            self._log.warning("%s: %s", self._agent, text)
        self._was_full = True
        return text


def _made(path: Path) -> bool:
    """Create it if missing. True: it already belongs to UID."""
    private_directory(path.parent)
    path.mkdir(exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise Failed(f"{path.name} is not a directory", executed="no")
    if info.st_uid == UID:
        return True
    path.chmod(MODE)
    return False


def give(top: Path) -> None:
    """Give `top` and what the operator put into it to UID, following no symlink. `top` goes last: as
    long as it isn't the agent's, this is done again."""
    for _, directories, files, descriptor in os.fwalk(top, follow_symlinks=False):
        for name in (*directories, *files):
            os.chown(name, UID, UID, dir_fd=descriptor, follow_symlinks=False)
    os.chown(top, UID, UID, follow_symlinks=False)
