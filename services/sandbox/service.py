"""Wires the sandbox service: bus in front, engine behind, one Sandbox per agent between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from beige.bus import Bus, Handler, Request
from beige.config import Config, load
from beige.errors import ConfigError, Malformed
from beige.messages.base import AgentRef, Empty
from beige.messages.sandbox import (
    ExecRequest,
    ExecResult,
    LogsRequest,
    SandboxInfo,
    SandboxList,
    SandboxLogs,
    SandboxView,
    VerifyRequest,
    VerifyResult,
    WorkspaceUsage,
)
from beige.paths import Home, image_dir
from beige.process import Context
from services.sandbox.commands import execute
from services.sandbox.containers import MAX_RUNNING, Sandbox
from services.sandbox.engine import Engine
from services.sandbox.failure import EngineError
from services.sandbox.files import Files
from services.sandbox.fleet import Sandboxes
from services.sandbox.quota import Usage
from services.sandbox.verify import Verification, summary
from services.sandbox.view import flags

OPERATOR_CALLS = 16
DRAIN_S = 2.0
"""Commands still running after so long of a shutdown are killed."""
REMOVE_S = 10.0
RETRY_S = 5.0


async def main(context: Context) -> None:
    config = load(context.home)
    engine = Engine()
    sandboxes = Sandboxes(context.home, config, engine, seccomp_profiles(), context.log)
    service = Service(sandboxes, config, context.home, context.log)
    bus = Bus(context.home, context.user)
    capacity = MAX_RUNNING * len(config.agents) + OPERATOR_CALLS
    bus.serve("sandbox", service.handlers(), capacity=max(64, capacity), drain_s=DRAIN_S)
    recovery = asyncio.create_task(recover(sandboxes, context.log), name="recover")
    try:
        await bus.start()
        context.ready()
        await context.stop.wait()
    finally:
        recovery.cancel()
        await asyncio.gather(recovery, return_exceptions=True)
        await bus.close()
        await service.close()
        await sandboxes.close()
        if context.stop.is_set():
            await remove_all(sandboxes, context.log)
        await engine.close()


def seccomp_profiles() -> dict[bool, str]:
    """By whether the agent is root inside."""
    return {False: seccomp_profile("seccomp.json"), True: seccomp_profile("seccomp-root.json")}


def seccomp_profile(name: str) -> str:
    path = image_dir() / name
    try:
        return path.read_text()
    except OSError as error:
        # Never without it: the engine's default profile lets AF_VSOCK and io_uring through.
        raise ConfigError(str(path), f"cannot be read ({error.strerror})", "reinstall beige") from None


async def recover(sandboxes: Sandboxes, log: logging.Logger) -> None:
    """Take up what a crashed predecessor left; the engine may need some time to come up."""
    reported = False
    while True:
        try:
            return await sandboxes.recover()
        except EngineError as error:
            if not reported:
                log.warning("the Docker engine is not usable yet: %s", error)
            reported = True
            await asyncio.sleep(RETRY_S)


async def remove_all(sandboxes: Sandboxes, log: logging.Logger) -> None:
    """An orderly end leaves no container behind. After a crash they stay and are taken up again."""
    try:
        async with asyncio.timeout(REMOVE_S):
            await sandboxes.remove_all()
    except (EngineError, TimeoutError) as error:
        log.error("containers may be left: %s", error)


class Service:
    """The handlers: each finds its agent's sandbox, bounded per agent."""

    def __init__(self, sandboxes: Sandboxes, config: Config, home: Home, log: logging.Logger) -> None:
        self._sandboxes, self._home, self._log = sandboxes, home, log
        self._files = {agent: Files(sandboxes.of(agent)) for agent in config.agents}

    def handlers(self) -> dict[str, Handler]:
        return {
            "sandbox.exec": self._exec,
            "sandbox.read": self._file("read"),
            "sandbox.write": self._file("write"),
            "sandbox.patch": self._file("patch"),
            "sandbox.ensure": self._ensure,
            "sandbox.list": self._list,
            "sandbox.remove": self._remove,
            "sandbox.stop": self._stop,
            "sandbox.logs": self._logs,
            "sandbox.show": self._show,
            "sandbox.verify": self._verify,
        }

    async def close(self) -> None:
        await asyncio.gather(*(files.close() for files in self._files.values()))

    def _sandbox(self, request: Request) -> Sandbox:
        if not request.agent:
            raise Malformed("agent: the call names none")
        return self._sandboxes.of(request.agent)

    async def _exec(self, request: Request, body: ExecRequest) -> ExecResult:
        sandbox = self._sandbox(request)
        with sandbox.place():
            return await execute(sandbox, request, body)

    def _file(self, tool: str) -> Callable[[Request, Any], Awaitable[Any]]:
        async def handle(request: Request, body: Any) -> Any:
            with self._sandbox(request).place():
                return await getattr(self._files[request.agent], tool)(request, body)

        return handle

    async def _ensure(self, request: Request, _: AgentRef) -> SandboxInfo:
        sandbox = self._sandbox(request)
        await sandbox.channel()
        return await sandbox.info()

    async def _list(self, _request: Request, _: Empty) -> SandboxList:
        return SandboxList(await self._sandboxes.list())

    async def _remove(self, request: Request, _: AgentRef) -> SandboxInfo:
        sandbox = self._sandbox(request)
        await sandbox.remove()
        return await sandbox.info()

    async def _stop(self, request: Request, _: AgentRef) -> SandboxInfo:
        sandbox = self._sandbox(request)
        await sandbox.stop()
        return await sandbox.info()

    async def _logs(self, request: Request, body: LogsRequest) -> SandboxLogs:
        return await self._sandbox(request).logs(body.lines)

    async def _show(self, request: Request, _: AgentRef) -> SandboxView:
        sandbox = self._sandbox(request)
        spec, found = await sandbox.described()
        config = sandbox.config.sandbox
        limits = config.model_dump(by_alias=True, exclude={"image", "profile", "runtime", "egress"})
        limits["egress"] = "none" if config.egress is None else ", ".join(config.egress.allow) or "no rule"
        if config.egress is not None:
            limits |= config.egress.model_dump(by_alias=True, exclude={"allow"})
        return SandboxView(
            info=await sandbox.info(),
            runtime=str((found or spec.body)["HostConfig"].get("Runtime") or ""),
            limits={name: str(value) for name, value in limits.items()},
            flags=flags(spec.body, found),
            workspace=_usage(await sandbox.workspace.usage()),
            root_layer_bytes=await sandbox.root_layer_bytes(),
        )

    async def _verify(self, request: Request, body: VerifyRequest) -> VerifyResult:
        sandbox = self._sandbox(request)
        verification = Verification(sandbox, self._home, sandbox.config.sandbox)
        with sandbox.place():
            async for result in verification.run(body):
                await request.send(result)
        report = verification.report()
        summary(report, self._log, sandbox.agent)
        return report


def _usage(seen: Usage | None) -> WorkspaceUsage | None:
    if seen is None:
        return None
    return WorkspaceUsage(seen.limit_bytes, seen.used_bytes, seen.limit_files, seen.used_files)
