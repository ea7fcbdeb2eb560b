"""Runs the probes on an agent's live container: through its channel, and by asking the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol

from beige.config import SandboxConfig
from beige.errors import Failed
from beige.messages.sandbox import ProbeResult, VerifyRequest, VerifyResult
from beige.paths import Home
from services.sandbox import cgroups, probes_gvisor, probes_open
from services.sandbox.channel import Command, Exit
from services.sandbox.commands import environment, exit_code
from services.sandbox.probes import (
    Facts,
    Inside,
    Probe,
    Verdict,
    chosen,
    judge_inside,
    judge_outside,
    left_out,
)
from services.sandbox.probes_inside import INSIDE
from services.sandbox.probes_outside import OUTSIDE
from services.sandbox.spec import ContainerSpec

PROBE_S = 60.0
"""The slowest takes 0.2 s on a quiet machine."""
SAID_BYTES = 4096


class Verified(Protocol):
    """What of `containers.Sandbox` this needs."""

    agent: str

    async def channel(self) -> Any: ...
    async def run(self, command: Command) -> Exit: ...
    async def described(self) -> tuple[ContainerSpec, dict[str, Any] | None]: ...
    async def filtered(self) -> bool: ...
    async def newly_out_of_memory(self) -> bool: ...


class Verification:
    """One run over one agent's container, which is made if there is none."""

    def __init__(
        self, sandbox: Verified, home: Home, config: SandboxConfig,
        limits: Callable[[int], dict[str, str]] = cgroups.limits,
    ) -> None:  # fmt: skip
        """`limits`: of a process, as the kernel has them."""
        self._sandbox, self._home, self._config, self._limits = sandbox, home, config, limits
        self._results: list[ProbeResult] = []
        self._container = self._runtime = self._executor = ""

    async def run(self, request: VerifyRequest) -> AsyncIterator[ProbeResult]:
        """The result of each probe, as it is known."""
        self._executor = str((await self._sandbox.channel()).kind)
        facts, inspected = await self._look()
        self._container, self._runtime = str(inspected["Name"]).lstrip("/"), facts.runtime
        probes = chosen((*OUTSIDE, *INSIDE), abuse=request.abuse)
        for number, probe in enumerate(probes, 1):
            verdict = await self._verdict(probe, facts, inspected)
            result = ProbeResult(
                probe.id, probe.side, probe.shows, verdict.status, verdict.expected, verdict.seen,
                number, len(probes),
            )  # fmt: skip
            self._results.append(result)
            yield result
        if request.abuse:
            # So that the next command that is killed is not said to have been killed for its memory.
            await self._sandbox.newly_out_of_memory()

    def report(self) -> VerifyResult:
        ids = {status: [r.id for r in self._results if r.status == status] for status in ("fail", "skip")}
        return VerifyResult(
            container=self._container,
            runtime=self._runtime,
            profile=self._config.profile,
            executor=self._executor,
            passed=len(self._results) - len(ids["fail"]) - len(ids["skip"]),
            failed=ids["fail"],
            skipped=ids["skip"],
        )

    async def _look(self) -> tuple[Facts, dict[str, Any]]:
        spec, found = await self._sandbox.described()
        if found is None:
            raise Failed(f"the container of agent {self._sandbox.agent!r} is gone", executed="no")
        facts = Facts(
            body=spec.body,
            environment=environment(self._sandbox.agent, self._config, {}, ""),
            executor=self._executor == "init",
            runtime=str(found["HostConfig"].get("Runtime") or ""),
            home=str(self._home.root),
            run=str(self._home.run),
            profile=self._config.profile,
            root=self._config.root,
            network=self._config.network,
            filtered=await self._sandbox.filtered(),
        )
        with suppress(OSError, ValueError, KeyError, TypeError):  # then that probe fails, and says so
            found["Cgroup"] = await asyncio.to_thread(self._limits, found["State"]["Pid"])
        return facts, found

    async def _verdict(self, probe: Probe, facts: Facts, inspected: dict[str, Any]) -> Verdict:
        expected = {**probes_open.changes(facts), **probes_gvisor.changes(facts)}
        reason = left_out(probe, facts, expected)
        if reason:
            return Verdict("skip", "", reason)
        if isinstance(probe, Inside):
            done = await self._sandbox.run(
                Command(probe.argv(facts), facts.environment, timeout_s=PROBE_S, limit_bytes=SAID_BYTES)
            )
            return judge_inside(probe, facts, exit_code(done.status), bytes(done.stdout.head), expected)
        return judge_outside(probe, facts, inspected, expected)


def summary(report: VerifyResult, log: logging.Logger, agent: str) -> None:
    """Not a governed call, so the service's log is where it is written down."""
    level = logging.WARNING if report.failed else logging.INFO
    log.log(
        level, "verified the sandbox of %s (%s): %d passed, %d skipped, failed: %s",
        agent, report.runtime, report.passed, len(report.skipped), ", ".join(report.failed) or "none",
    )  # fmt: skip
