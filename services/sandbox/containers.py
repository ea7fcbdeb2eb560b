"""One container per agent: made when it is needed, found again after a restart, replaced when dead.

Each agent has its own task that brings its container up, so that one agent's trouble delays nobody
else; callers of one agent share it, and a caller that goes away does not stop it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from beige.config import AgentConfig, Config, ConfigProblems, Mount, examine_mounts
from beige.config.runtimes import SOCKETS, Runtime, is_gvisor, runtime_for
from beige.errors import BeigeError, Failed, NotFound, Overloaded, TooLarge
from beige.messages.sandbox import SandboxInfo, SandboxLogs
from beige.paths import Home
from services.sandbox import ends, failure, launchers
from services.sandbox.channel import CannotRun, Channel, ChannelLost, Command, Exit, OnOutput
from services.sandbox.engine import Container, Engine
from services.sandbox.failure import EngineError, Kind
from services.sandbox.fallback import DockerExecChannel
from services.sandbox.gvisor import guarded
from services.sandbox.listener import ExecListener, Identity
from services.sandbox.relay import Relay
from services.sandbox.spec import (
    SPEC_LABEL,
    WORKSPACE,
    ContainerSpec,
    container_name,
    container_spec,
    home_digest,
    own_environment,
)
from services.sandbox.workspace import Workspace

MAX_RUNNING = 32
"""Calls of one agent at once. The service's capacity is this times the agents: one agent's hundred
sleeping commands leave the others' places free. The executor takes 64."""
CONNECT_S = 20.0
"""From start to HELLO; takes 0.1 s on a quiet machine."""
ADOPT_S = 5.0
COUNT_S = 10.0
CLOSE_S = 5.0
"""How long a shutdown waits for a container that is just being made, to find and remove it."""
REAL_PIDS = frozenset({"", "runc", "crun", "io.containerd.runc.v2"})
"""Runtimes under which a process in the container has a pid of the host's."""


MEMORY_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Where the container sees its own count of such kills: cgroup v2, v1."""


class Plan(Enum):
    CREATE = "create"
    ADOPT = "adopt"
    REPLACE = "replace"


def plan(found: Container | None, digests: frozenset[str], image_id: str) -> Plan:
    """What to do about the container that has the agent's name, if any. One that runs, was made from
    today's spec (`digests`) and today's image is kept; so a restarted service loses no work."""
    if found is None:
        return Plan.CREATE
    current = found.running and found.spec in digests and found.image_id == image_id
    return Plan.ADOPT if current else Plan.REPLACE


def memory_kills(events: str) -> int:
    """The kernel's count in the text of MEMORY_EVENTS."""
    return sum(int(n) for n in re.findall(r"^oom_kill (\d{1,9})$", events, re.MULTILINE))


class Sandbox:
    """One agent's container and the way into it."""

    def __init__(
        self, agent: str, config: Config, home: Home, engine: Engine, seccomp: str, log: logging.Logger
    ) -> None:
        self.agent = agent
        self.config: AgentConfig = config.agents[agent]
        self._whole, self._home, self._engine, self._seccomp, self._log = config, home, engine, seccomp, log
        self._listener = ExecListener(home.exec_socket(agent), log)
        self._relay = Relay(agent, log)
        self._exec_channel: DockerExecChannel | None = None
        self._foreign_image = ""
        """Id of an image that turned out to have no executor."""
        self._bringing: asyncio.Task[Channel] | None = None
        self._lock = asyncio.Lock()
        self._running = 0
        self._memory_kills = 0
        self._container = ""
        """Id of the one that commands go to."""
        self._replaced: ends.End | None = None
        self.workspace = Workspace(home, agent, self.config.sandbox, engine, seccomp, log)

    # --- for callers -----------------------------------------------------------------------------------

    @contextmanager
    def place(self) -> Iterator[None]:
        """Bounds what one agent may have running. Overloaded if it has too much."""
        if self._running >= MAX_RUNNING:
            raise Overloaded(f"agent {self.agent!r} has {MAX_RUNNING} calls running in its sandbox")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def channel(self) -> Channel:
        """The way into the running container, which is created or found if need be."""
        live = self._live()
        if live is not None:
            return live
        if self._bringing is None or self._bringing.done():
            self._bringing = asyncio.create_task(self._bring_up(), name=f"bring-up-{self.agent}")
            self._bringing.add_done_callback(_look_at)
        return await asyncio.shield(self._bringing)

    async def run(self, command: Command, on_output: OnOutput | None = None) -> Exit:
        """`Channel.run`, with everything that can go wrong as a BeigeError."""
        channel = await self.channel()
        container = self._container
        try:
            return await channel.run(command, on_output)
        except EngineError as error:
            raise self._translate(error) from error
        except CannotRun as error:
            raise _cannot_run(error, command) from error
        except ChannelLost as error:
            known = self._engine, self.agent, container, error
            raise await ends.why_lost(*known, lambda: self._replaced) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            raise self._translate(error) from error

    def _translate(self, error: EngineError) -> BeigeError:
        return failure.to_beige(error, self.agent, self.config.sandbox.image)

    async def newly_out_of_memory(self) -> bool:
        """Did the kernel kill something in the container for its memory limit since last asked?"""
        before, self._memory_kills = self._memory_kills, await self._count_memory_kills()
        return self._memory_kills > before

    async def _count_memory_kills(self) -> int:
        command = Command(("/bin/cat", *MEMORY_EVENTS), own_environment(self.agent), "/", timeout_s=5.0)
        try:
            return memory_kills(bytes((await self.run(command)).stdout.head).decode("ascii", "replace"))
        except BeigeError:
            return 0

    async def info(self) -> SandboxInfo:
        with self._translated():
            found = await self._engine.inspect(container_name(self._home, self.agent))
        channel = self._live()
        return SandboxInfo(
            agent=self.agent,
            container=found.name if found else "",
            state=found.state if found else "absent",
            image=self.config.sandbox.image,
            profile=self.config.sandbox.profile,
            executor=channel.kind if channel else "",
            runtime=found.runtime if found else "",
            created=found.created if found else "",
        )

    async def described(self) -> tuple[ContainerSpec, dict[str, Any] | None]:
        """What the container should be, and the engine's whole answer about the one there is, if any."""
        specs = await self._specs()
        with self._translated():
            found = await self._engine.describe(specs[True].name)
        made_from = ((found or {}).get("Config", {}).get("Labels") or {}).get(SPEC_LABEL)
        return next((spec for spec in specs.values() if spec.digest == made_from), specs[True]), found

    async def root_layer_bytes(self) -> int | None:
        """What is in the container's root layer, where it can be written: no quota bounds it. None: it can't
        be, there is no container, or an agent made more files than can be counted in COUNT_S."""
        if self.config.sandbox.profile != "open":
            return None
        with self._translated(), suppress(TimeoutError):
            async with asyncio.timeout(COUNT_S):
                return await self._engine.root_layer_bytes(container_name(self._home, self.agent))
        return None

    async def filtered(self) -> bool:
        """Does our seccomp profile hold for what runs in the container?"""
        return (await self._runtime()).filtered

    async def logs(self, lines: int) -> SandboxLogs:
        """What the container printed, and the state of its executor; makes no container."""
        with self._translated():
            found = await self._engine.inspect(container_name(self._home, self.agent))
            log = b"" if found is None else await self._engine.log(found.id, lines)
        state = SandboxLogs(
            info=await self.info(),
            log=log,
            running=self._running,
            refused=self._listener.refused,
            last_lost=self._listener.last_lost,
        )
        if found is not None:
            state.started, state.finished = found.started, found.finished
            state.exit_code = found.exit_code
            state.out_of_memory = await ends.for_memory(self._engine, found)
        return state

    async def stop(self) -> None:
        """End everything in the container; it stays, with its log, until the next call makes a new one."""
        async with self._lock:
            await self._disconnect()
            with self._translated():
                found = await self._engine.inspect(container_name(self._home, self.agent))
                if found is not None and found.home == home_digest(self._home):
                    await self._engine.kill(found.id)
            await self.workspace.detach()

    async def remove(self) -> None:
        """End everything in the container and remove it; the workspace stays."""
        async with self._lock:
            await self._disconnect()
            with self._translated():
                found = await self._engine.inspect(container_name(self._home, self.agent))
                if found is not None and found.home == home_digest(self._home):
                    await self._engine.remove(found.id)
            await self.workspace.detach()

    async def close(self) -> None:
        """Let go of the container without touching it."""
        if self._bringing is not None:
            await asyncio.wait([self._bringing], timeout=CLOSE_S)
        await self._disconnect()
        await self._listener.close()

    # --- bringing it up ----------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self._live() is not None

    def _live(self) -> Channel | None:
        if self._exec_channel is not None:
            return self._exec_channel if self._exec_channel.alive else None
        return self._listener.channel

    async def _bring_up(self) -> Channel:
        async with self._lock:
            live = self._live()
            if live is not None:
                return live
            await self._disconnect()
            try:
                with self._translated():
                    channel = await self._find_or_create()
                if self.config.sandbox.egress is not None:
                    await self._relay.start(channel)
                return channel
            except OSError as error:
                self._log.exception("preparing the sandbox of %s failed", self.agent)
                raise Failed(
                    f"the sandbox of {self.agent!r} can't be prepared: {error.strerror}", executed="no"
                ) from error

    async def _find_or_create(self) -> Channel:
        image = self.config.sandbox.image
        specs = await self._specs()
        image_id = await self._engine.image_id(image)
        self._listener.start()
        await asyncio.to_thread(launchers.write_tools, self._home, self._whole, self.agent)
        found = await self._engine.inspect(specs[True].name)
        if found is not None and found.home != home_digest(self._home):
            raise EngineError(Kind.NAME_TAKEN, found.name)
        if found is not None and not await self.workspace.in_place():
            # It would go on in what lies below the mount.
            self._log.info("replacing the container of %s: its workspace gets a file system", self.agent)
            await self._engine.remove(found.id)
            found = None
        await self.workspace.prepare()
        decided = plan(found, frozenset(spec.digest for spec in specs.values()), image_id)
        if decided is Plan.ADOPT and found is not None:
            adopted = await self._adopt(found, executor=found.spec == specs[True].digest)
            if adopted is not None:
                return adopted
        if found is not None:
            self._replaced = await ends.end_of(self._engine, found)
            self._log.info("replacing the container of %s (%s)", self.agent, self._replaced)
            await self._engine.remove(found.id)
        return await self._create(specs, image_id)

    async def _adopt(self, found: Container, *, executor: bool) -> Channel | None:
        if executor and found.runtime not in REAL_PIDS:
            # Whoever dials now may be a process of the agent's that stopped PID 1 (listener.admits).
            self._log.info("%s does not tell who dials: the container is not taken up again", found.runtime)
            return None
        channel = await self._executor_of(found, ADOPT_S) if executor else self._by_docker_exec(found.id)
        if channel is not None:
            self._log.info("found the container of %s again", self.agent)
            self._warn_of_bridge()
        if channel is not None and executor:
            self._memory_kills = await self._count_memory_kills()
        return channel

    async def _create(self, specs: dict[bool, ContainerSpec], image_id: str) -> Channel:
        if lacks := (await self._runtime()).lacks:
            name = self.config.sandbox.runtime
            raise Failed(f"agent {self.agent!r} can't have the runtime {name!r}: {lacks}", executed="no")
        if image_id != self._foreign_image:
            try:
                return await self._with_executor(specs[True])
            except EngineError as error:
                if error.kind is not Kind.COMMAND_MISSING:
                    raise
                self._foreign_image = image_id
                self._log.warning(
                    "%s has no executor; falling back to docker exec", self.config.sandbox.image
                )
        self._warn_of_bridge()
        container = await self._started(specs[False])
        return self._by_docker_exec(container.id)

    def _warn_of_bridge(self) -> None:
        if self.config.sandbox.network == "bridge":
            self._log.warning("the container of %s is on the engine's bridge (sandbox.network): whatever it "
                              "reaches there, this machine's own services too, is neither decided nor "
                              "recorded", self.agent)  # fmt: skip

    async def _with_executor(self, spec: ContainerSpec) -> Channel:
        self._listener.forget()
        self._memory_kills = 0
        container = await self._started(spec)
        channel = await self._executor_of(container, CONNECT_S)
        if channel is not None:
            self._log.info("made the container of %s, runtime: %s", self.agent, (await self._runtime()).why)
            self._warn_of_bridge()
            return channel
        state = await self._engine.inspect(container.id)
        await self._engine.remove(container.id)
        seen = f"{state.state}, exit code {state.exit_code}" if state is not None else "removed"
        advice = "does the image fit this version?"
        if is_gvisor(container.runtime):
            advice = f"gVisor needs {SOCKETS[0]} in the engine's runtimeArgs"
        raise Failed(
            f"the executor of agent {self.agent!r} did not report within {CONNECT_S:.0f} s "
            f"(container: {seen}); {advice}",
            executed="no",
        )

    async def _started(self, spec: ContainerSpec) -> Container:
        container = await self._engine.create(spec)
        try:
            program = spec.body["Entrypoint"][0]
            # A start that fails in gVisor leaves containerd's shim behind for good: better look first.
            look = program.startswith("/") and is_gvisor(spec.body["HostConfig"].get("Runtime"))
            if look and not await self._engine.has_file(container, program):
                raise EngineError(Kind.COMMAND_MISSING, f"there is no {program}")
            await self._engine.start(container)
            started = await self._engine.inspect(container)
        except BaseException:
            with suppress(EngineError):
                await asyncio.shield(self._engine.remove(container))
            raise
        if started is None:
            raise EngineError(Kind.CONTAINER_MISSING, container)
        return started

    async def _executor_of(self, container: Container, timeout_s: float) -> Channel | None:
        self._container = container.id
        exact = container.runtime in REAL_PIDS
        self._listener.expect(Identity(container.id, container.pid, exact=exact))
        return await self._listener.connected(timeout_s)

    def _by_docker_exec(self, container: str) -> Channel:
        self._container = container
        self._exec_channel = DockerExecChannel(self._engine, container)
        return self._exec_channel

    async def _specs(self) -> dict[bool, ContainerSpec]:
        """With our executor, and without."""
        mounts = await asyncio.to_thread(self._mounts)
        runtime = await self._runtime()
        agent, sandbox = self.agent, self.config.sandbox.model_copy(update={"runtime": runtime.name})
        seccomp = guarded(self._seccomp) if is_gvisor(runtime.name) else self._seccomp
        return {
            executor: container_spec(agent, sandbox, self._home, seccomp, executor=executor, mounts=mounts)
            for executor in (True, False)
        }

    async def _runtime(self) -> Runtime:
        sandbox, listed = self.config.sandbox, {}
        if sandbox.runtime is None or is_gvisor(sandbox.runtime):
            with self._translated():
                listed = await self._engine.runtimes()
        return runtime_for(sandbox, listed)

    def _mounts(self) -> tuple[Mount, ...]:
        """Judged again each time: what was a directory when the configuration was read may be a link to
        the engine's socket now. Blocking."""
        if not self.config.sandbox.extra_mounts:
            return ()
        mounts, problems = examine_mounts(self._whole.model_dump(by_alias=True), self._home)
        mine = [problem for problem in problems if problem.location[1] == self.agent]
        if mine:
            raise ConfigProblems(mine)
        return mounts.get(self.agent, ())

    async def _disconnect(self) -> None:
        await self._relay.stop()
        if self._exec_channel is not None:
            await self._exec_channel.close()
            self._exec_channel = None
        await self._listener.disconnect()


def _cannot_run(error: CannotRun, command: Command) -> BeigeError:
    """The executor's ERROR: it names the step (chdir, exec, fork) and the errno."""
    step = str(error).partition(":")[0]
    if error.errno == errno.E2BIG:
        return TooLarge("the command and its environment are too long: write it into a file first")
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and step == "chdir":
        return NotFound(f"no such directory: {command.cwd}")
    if error.errno == errno.EACCES and step == "chdir" and command.cwd == WORKSPACE:
        return Failed(
            "the workspace can't be entered: with workspaceSize, does the engine see the mounts of the host?",
            executed="no",
        )
    if error.errno == errno.ENOENT:
        return NotFound(f"no such program in the sandbox: {command.argv[0]}")
    if error.errno == errno.EAGAIN:
        return Overloaded("the sandbox has no process left (agents.*.sandbox.pids)")
    return Failed(f"the sandbox could not start the command: {failure.last_line(str(error))}", executed="no")


def _look_at(task: asyncio.Task[Channel]) -> None:
    """A failure nobody waits for any more is not an unretrieved exception."""
    if not task.cancelled():
        task.exception()
