"""`beige exec`: one governed command in an agent's sandbox, as its operator."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from beige.paths import Home

if TYPE_CHECKING:
    from beige.bus import Stream

CHUNK = 64 * 1024


def execute(
    agent: Annotated[str, typer.Argument(help="The agent whose sandbox it runs in.")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    cwd: Annotated[str, typer.Option(help="Directory in the sandbox.")] = "/workspace",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds; 0: the agent's configured deadline.")] = 0.0,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Pass standard input on, as the command reads it.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Run one command in an agent's sandbox. It is decided by policy and audited like the agent's own;
    output comes as it is produced, the exit code is the command's.

    \b
    Examples:
      beige exec assistant -- ls -la /workspace
      beige exec assistant -i -- python3 - < script.py
    """
    from beige.cli.calls import check_agent, run

    home = Home.find()
    check_agent(home, agent)
    raise typer.Exit(run(_exec(home, agent, command, cwd, timeout, stdin, json_output)))


async def _exec(
    home: Home, agent: str, argv: list[str], cwd: str, timeout_s: float, stdin: bool, json_output: bool
) -> int:
    from beige.cli.calls import CHANNEL, connected
    from beige.cli.terminal import Writer, emit
    from beige.messages.sandbox import ExecRequest
    from beige.wire import MAX_TTL_S

    request = ExecRequest(argv=argv, cwd=cwd, timeout_s=timeout_s, stdin_follows=stdin)
    out, err = Writer(sys.stdout), Writer(sys.stderr)
    async with (
        connected(home) as bus,
        bus.open("sandbox.exec", request, agent=agent, channel=CHANNEL, ttl_s=MAX_TTL_S) as stream,
    ):
        feeder = asyncio.create_task(_feed(stream), name="stdin") if stdin else None
        try:
            async for item in stream:
                if not json_output:
                    (out if item.stream == "stdout" else err).bytes(item.data)
            result = await stream.result()
        finally:
            if feeder is not None:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)
    if json_output:
        emit(_as_json(result))
        return 0
    if result.timed_out:
        err.styled("beige: the command was killed: its time was over", "yellow")
    return int(result.exit_code)


async def _feed(stream: Stream) -> None:
    """Standard input, no faster than the command takes it: `send` waits for credit."""
    chunks: asyncio.Queue[bytes] = asyncio.Queue(1)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # A thread of its own: a terminal or pipe where nothing comes must not delay the command's end.
        data = b"-"
        while data:
            try:
                data = os.read(sys.stdin.fileno(), CHUNK)
            except OSError:
                data = b""
            handed = chunks.put(data)
            try:
                asyncio.run_coroutine_threadsafe(handed, loop).result()
            except (RuntimeError, concurrent.futures.CancelledError):
                handed.close()
                return  # the command ended before its input

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while data := await chunks.get():
        await stream.send(data)
    await stream.end()


def _as_json(result: object) -> dict[str, object]:
    from msgspec import structs

    found = structs.asdict(result)  # type: ignore[arg-type]
    return {k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in found.items()}
