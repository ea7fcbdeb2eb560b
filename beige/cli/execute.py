"""`beige exec`: one governed command in an agent's sandbox, as its operator."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from beige.paths import Home

MAX_STDIN = 512 * 1024


def execute(
    agent: Annotated[str, typer.Argument(help="The agent whose sandbox it runs in.")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    cwd: Annotated[str, typer.Option(help="Directory in the sandbox.")] = "/workspace",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds; 0: the agent's configured deadline.")] = 0.0,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Pass standard input on (512 KiB at most).")
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
    from beige.errors import TooLarge

    home = Home.find()
    check_agent(home, agent)
    data = sys.stdin.buffer.read(MAX_STDIN + 1) if stdin else b""
    if len(data) > MAX_STDIN:
        raise TooLarge(
            f"standard input is longer than {MAX_STDIN} bytes: write it to a file in the workspace"
        )
    raise typer.Exit(run(_exec(home, agent, command, cwd, timeout, data, json_output)))


async def _exec(
    home: Home, agent: str, argv: list[str], cwd: str, timeout_s: float, stdin: bytes, json_output: bool
) -> int:
    from beige.cli.calls import CHANNEL, connected
    from beige.cli.terminal import Writer, emit
    from beige.messages.sandbox import ExecRequest
    from beige.wire import MAX_TTL_S

    request = ExecRequest(argv=argv, cwd=cwd, timeout_s=timeout_s, stdin=stdin)
    out, err = Writer(sys.stdout), Writer(sys.stderr)
    async with (
        connected(home) as bus,
        bus.open("sandbox.exec", request, agent=agent, channel=CHANNEL, ttl_s=MAX_TTL_S) as stream,
    ):
        async for item in stream:
            if not json_output:
                (out if item.stream == "stdout" else err).bytes(item.data)
        result = await stream.result()
    if json_output:
        emit(_as_json(result))
        return 0
    if result.timed_out:
        err.styled("beige: the command was killed: its time was over", "yellow")
    return int(result.exit_code)


def _as_json(result: object) -> dict[str, object]:
    from msgspec import structs

    found = structs.asdict(result)  # type: ignore[arg-type]
    return {k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in found.items()}
