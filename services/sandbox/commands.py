"""The core tool exec: a command in the agent's container, its output bounded, its end certain."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol

import msgspec

from beige import wire
from beige.config import SandboxConfig
from beige.errors import Malformed, TooLarge
from beige.messages.sandbox import ExecItem, ExecRequest, ExecResult
from beige.wire import Outcome
from services.sandbox.channel import Captured, Command, Exit
from services.sandbox.containers import Sandbox
from services.sandbox.content import absolute
from services.sandbox.spec import base_environment

MAX_KEPT = 448 * 1024
"""Per stream, so that both and their tails fit into one answer (`wire.MAX_BODY`)."""
TIMED_OUT = 124
SIGNALLED = 128
KILLED = 137
MAX_VARIABLES = 256
MAX_ENVIRONMENT = 96 * 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_RESERVED = "BEIGE_"


class ExecCall(Protocol):
    """What of `beige.bus.Request` exec needs."""

    token: str
    outcome: Outcome

    @property
    def wants_items(self) -> bool: ...
    async def send(self, item: msgspec.Struct) -> None: ...
    def items(self) -> AsyncIterator[bytes]: ...


async def execute(sandbox: Sandbox, call: ExecCall, body: ExecRequest) -> ExecResult:
    """Run it. A command that fails is a result; Failed means that it could not be run, or was lost."""
    started = time.perf_counter()
    command = command_of(
        sandbox.agent, sandbox.config.sandbox, body, call.token, _deadline(sandbox, body), _limit(sandbox)
    )
    if body.stdin_follows:
        # Taken as the command reads it: its pipe, the executor's window and the bus's credit bound it.
        command = replace(command, stdin=call.items())

    async def forward(stream: str, data: bytes) -> None:
        # Waits for the caller's credit; meanwhile the executor gets none and the command's pipe fills.
        for start in range(0, len(data), wire.CHUNK):
            await call.send(ExecItem(stream, data[start : start + wire.CHUNK]))  # type: ignore[arg-type]

    ended = await sandbox.run(command, forward if call.wants_items else None)
    result = result_of(ended)
    result.duration_ms = round((time.perf_counter() - started) * 1000, 3)
    if result.exit_code == KILLED and await sandbox.newly_out_of_memory():
        limit = sandbox.config.sandbox.memory
        result.stderr += f"\n[killed: over the sandbox's memory limit of {limit}]\n".encode()
        call.outcome.error = "out of memory"
    elif result.exit_code and (full := await sandbox.workspace.full()):
        result.stderr += f"\n[{full}]\n".encode()
        call.outcome.error = "workspace full"
    call.outcome.exit_code = result.exit_code
    call.outcome.output_bytes = result.stdout_bytes + result.stderr_bytes
    if ended.timed_out:
        call.outcome.error = f"timed out after {command.timeout_s:g} s"
    return result


def _deadline(sandbox: Sandbox, body: ExecRequest) -> float:
    longest = sandbox.config.sandbox.deadline_s
    return min(body.timeout_s, longest) if body.timeout_s > 0 else longest


def _limit(sandbox: Sandbox) -> int:
    return min(sandbox.config.sandbox.output_limit, MAX_KEPT)


def command_of(
    agent: str, sandbox: SandboxConfig, body: ExecRequest, token: str, timeout_s: float, limit_bytes: int
) -> Command:
    """The request as a command. Malformed names the wrong field."""
    if bool(body.argv) == bool(body.command):
        raise Malformed("command: give either command or argv")
    argv = tuple(body.argv) or ("/bin/bash", "-c", body.command)
    if body.stdin and body.stdin_follows:
        raise Malformed("stdin: give it or let it follow, not both")
    if any("\0" in argument for argument in argv):
        raise Malformed("command: holds a NUL byte")
    return Command(
        argv,
        environment(agent, sandbox, body.env, token),
        cwd=absolute(body.cwd) if body.cwd else "/workspace",
        stdin=body.stdin or None,
        timeout_s=timeout_s,
        limit_bytes=limit_bytes,
    )


def environment(agent: str, sandbox: SandboxConfig, extra: dict[str, str], token: str) -> dict[str, str]:
    """All the command gets. The request may add to it, and change PATH or HOME (the agent could do so
    itself), but not what beige says: a stale token is not presented as this call's."""
    if len(extra) > MAX_VARIABLES:
        raise TooLarge(f"env: more than {MAX_VARIABLES} variables")
    for name, value in extra.items():
        if not _VARIABLE.match(name) or name.startswith(_RESERVED):
            raise Malformed(f"env: {name[:64]!r} is not allowed as a name")
        if "\0" in value:
            raise Malformed(f"env.{name}: holds a NUL byte")
    if sum(len(name) + len(value) for name, value in extra.items()) > MAX_ENVIRONMENT:
        raise TooLarge(f"env: more than {MAX_ENVIRONMENT} characters")
    own = {"BEIGE_CALL_TOKEN": token} if token else {}
    return {**base_environment(agent, sandbox, token), **extra, **own}


def result_of(ended: Exit) -> ExecResult:
    return ExecResult(
        exit_code=TIMED_OUT if ended.timed_out else exit_code(ended.status),
        stdout=shown(ended.stdout),
        stderr=shown(ended.stderr),
        stdout_bytes=ended.stdout.total,
        stderr_bytes=ended.stderr.total,
        stdout_cut=ended.stdout.cut,
        stderr_cut=ended.stderr.cut,
        timed_out=ended.timed_out,
    )


def exit_code(status: int) -> int:
    """As a shell would say it."""
    return SIGNALLED - status if status < 0 else status


def shown(stream: Captured) -> bytes:
    """Head and tail, with a notice where something was left out."""
    notice = f"\n… [{stream.cut} bytes left out] …\n".encode() if stream.cut else b""
    return bytes(stream.head) + notice + stream.tail
