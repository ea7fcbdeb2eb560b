"""Commands by `docker exec`: what the engine's connection carries, from an engine that is a socket pair."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

from services.sandbox.channel import Command, Exit
from services.sandbox.engine import Engine, OpenExec
from services.sandbox.fallback import DockerExecChannel


class LateOutput:
    """Says that the command ended before it delivers what the command printed."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        self._opened = OpenExec("e", ours, b"")
        self.asked = 0

    async def open_exec(self, *_: Any) -> OpenExec:
        return self._opened

    async def exec_exit_code(self, _: str) -> int | None:
        self.asked += 1
        if self.asked == 1:
            asyncio.get_running_loop().call_later(0.1, self._deliver)
        return 0

    def _deliver(self) -> None:
        self._theirs.sendall(struct.pack(">BxxxL", 1, 5) + b"late\n")

    def close(self) -> None:
        self._theirs.close()


def test_output_that_comes_after_the_end_is_not_lost() -> None:
    """Nor is a connection waited for that a background process holds open: `_theirs` stays."""
    engine = LateOutput()

    async def main() -> Exit:
        channel = DockerExecChannel(cast(Engine, engine), "c")
        try:
            return await channel.run(Command(("true",), {}, "/", timeout_s=60))
        finally:
            await channel.close()

    done = asyncio.run(main())
    engine.close()
    assert bytes(done.stdout.head) == b"late\n"
    assert (done.status, done.timed_out) == (0, False)
