"""The agent's workspace on the host: made once, given to uid 64000, never opened again.

The agent owns what is inside and can plant symlinks there, so nothing of ours follows a path into it
(read, write and patch go through the container). Ownership is changed only while the directory still
belongs to the operator, that is before any agent ran in it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from beige.errors import Failed
from beige.paths import Home, private_directory
from services.sandbox.engine import Engine
from services.sandbox.failure import last_line
from services.sandbox.spec import UID, ownership_spec

MODE = 0o755
"""The operator may look into it; other users are kept out by `agents/`, which is 0700."""


async def prepare(home: Home, agent: str, image: str, engine: Engine, seccomp: str) -> None:
    """After this the workspace exists and belongs to UID. Failed if it can't be made so."""
    path = home.workspace(agent)
    if await asyncio.to_thread(_made, path):
        return
    if os.geteuid() == 0:
        await asyncio.to_thread(give, path)
        return
    # An ordinary user can't give files away; root in a one-shot container with CHOWN can.
    code, log = await engine.run_helper(ownership_spec(home, agent, image, seccomp))
    if code != 0 or path.stat().st_uid != UID:
        raise Failed(
            f"the workspace of {agent!r} can't be given to uid {UID}: {last_line(log)}", executed="no"
        )


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
