"""The Docker engine: the only file that imports its SDK, blocking calls in threads of its own.

Each thread has its own client (a requests session is not safe to share). Errors are translated here,
once: what leaves is EngineError with a Kind. Only containers with this home's label are listed, and
`remove` takes an id that came from `list`, `inspect` or `create`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions

from services.sandbox.failure import NEAR_S, EngineError, Happening, Kind, classify, moment
from services.sandbox.spec import AGENT_LABEL, HOME_LABEL, SPEC_LABEL, ContainerSpec

THREADS = 16
CALL_TIMEOUT_S = 60
HELPER_TIMEOUT_S = 120.0
HELPER_LOG_BYTES = 4096
LOG_BYTES = 256 * 1024
MAX_HISTORY = 256
"""Events the engine remembers, of all containers."""

T = TypeVar("T")


@dataclass(frozen=True)
class Container:
    """What the engine says about one container."""

    id: str
    name: str
    home: str
    agent: str
    spec: str
    """Digest of the spec it was made from."""
    state: str
    """Docker's word: created, running, exited, dead, ..."""
    pid: int
    image: str
    image_id: str
    created: str
    exit_code: int
    oom_killed: bool
    runtime: str
    started: str = ""
    finished: str = ""

    @property
    def running(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class OpenExec:
    """A started `docker exec`: its raw connection and what of it was read already."""

    id: str
    connection: socket.socket
    early: bytes


class Engine:
    """Asynchronous face of the engine that the environment (DOCKER_HOST, ...) names."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._local = threading.local()
        self._clients: list[Any] = []
        self._lock = threading.Lock()
        self._runtimes: dict[str, Any] | None = None

    async def close(self) -> None:
        """After this no call may be made."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        for client in self._clients:
            client.close()
        self._clients.clear()

    async def image_id(self, reference: str) -> str:
        return str((await self._call(lambda api: api.inspect_image(reference)))["Id"])

    async def runtimes(self) -> dict[str, Any]:
        """The runtimes it lists, with their arguments; as they were when first asked for."""
        if self._runtimes is None:
            self._runtimes = dict((await self._call(lambda api: api.info())).get("Runtimes") or {})
        return self._runtimes

    async def create(self, spec: ContainerSpec) -> str:
        return await self._create(spec.body, spec.name)

    async def has_file(self, container: str, path: str) -> bool:
        """Also in a container that was never started."""
        return await self._call(lambda api: _has_file(api, container, path))

    async def start(self, container: str) -> None:
        await self._call(lambda api: api.start(container))

    async def inspect(self, container: str) -> Container | None:
        """By id or name; None if there is none."""
        found = await self.describe(container)
        return None if found is None else _container(found)

    async def describe(self, container: str) -> dict[str, Any] | None:
        """The engine's whole answer about it (`GET /containers/ID/json`); None if there is none."""
        try:
            return dict(await self._call(lambda api: api.inspect_container(container)))
        except EngineError as error:
            if error.kind is Kind.CONTAINER_MISSING:
                return None
            raise

    async def root_layer_bytes(self, container: str) -> int | None:
        """What was written into its root layer; the engine counts the files, which takes a moment. None if
        there is no such container."""
        try:
            return await self._call(lambda api: _root_layer_bytes(api, container))
        except EngineError as error:
            if error.kind is Kind.CONTAINER_MISSING:
                return None
            raise

    async def list(self, home: str) -> list[Container]:
        """All containers of one home, running or not."""
        label = f"{HOME_LABEL}={home}"
        found = await self._call(lambda api: api.containers(all=True, filters={"label": label}))
        inspected = await asyncio.gather(*(self.inspect(str(one["Id"])) for one in found))
        return [one for one in inspected if one is not None]

    async def remove(self, container: str) -> None:
        """Kill and remove. Missing already, or being removed by someone else: fine."""
        with suppress(_Gone):
            await self._call(lambda api: _remove(api, container))

    async def kill(self, container: str) -> None:
        """End its processes; it stays. One that does not run is fine."""
        try:
            await self._call(lambda api: api.kill(container))
        except EngineError as error:
            if error.kind not in (Kind.NOT_RUNNING, Kind.CONTAINER_MISSING):
                raise

    async def log(self, container: str, lines: int) -> bytes:
        """The end of what its first process printed, at most LOG_BYTES."""
        return await self._call(
            lambda api: bytes(api.logs(container, stdout=True, stderr=True, tail=lines))[-LOG_BYTES:]
        )

    async def history(self, ended: Container) -> Sequence[Happening]:
        """What the engine remembers of its end; waits for what it may yet notice, at most NEAR_S."""
        until = moment(ended.finished) + NEAR_S
        return await self._call(lambda api: _history(api, ended.id, until))

    async def run_helper(self, body: Mapping[str, Any]) -> tuple[int, str]:
        """Run a container to its end: its exit code and the end of what it printed."""
        container = await self._create(body, None)
        try:
            return await self._call(lambda api: _run_to_end(api, container))
        finally:
            await asyncio.shield(self.remove(container))

    async def open_exec(
        self, container: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, user: str, stdin: bool
    ) -> OpenExec:
        """Start a command with `docker exec`; the caller owns the connection."""
        body = {
            "Cmd": list(argv),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": cwd,
            "User": user,
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "Privileged": False,
        }
        return await self._call(lambda api: _open_exec(api, container, body))

    async def exec_exit_code(self, exec_id: str) -> int | None:
        """None while it runs."""
        state = await self._call(lambda api: api.exec_inspect(exec_id))
        return None if state.get("Running") else int(state.get("ExitCode") or 0)

    async def _create(self, body: Mapping[str, Any], name: str | None) -> str:
        made = await self._call(lambda api: api.create_container_from_config(dict(body), name))
        return str(made["Id"])

    async def _call(self, work: Callable[[Any], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._translated, work)

    def _translated(self, work: Callable[[Any], T]) -> T:
        try:
            return work(self._client())
        except docker.errors.APIError as error:
            text = str(error.explanation or error)
            raise EngineError(classify(error.status_code, text), text) from error
        except requests.exceptions.Timeout as error:
            raise EngineError(Kind.TIMEOUT, str(error)) from error
        except (
            docker.errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError,
            OSError,
        ) as error:  # fmt: skip
            raise EngineError(Kind.UNREACHABLE, str(error)) from error

    def _client(self) -> Any:
        if not hasattr(self._local, "api"):
            api = docker.from_env(timeout=CALL_TIMEOUT_S).api
            with self._lock:
                self._clients.append(api)
            self._local.api = api
        return self._local.api


class _Gone(Exception):
    pass


def _remove(api: Any, container: str) -> None:
    try:
        api.remove_container(container, force=True, v=True)
    except docker.errors.NotFound as error:
        raise _Gone from error
    except docker.errors.APIError as error:
        if error.status_code == 409 and "already in progress" in str(error.explanation):
            raise _Gone from error
        raise


def _run_to_end(api: Any, container: str) -> tuple[int, str]:
    api.start(container)
    code = int(api.wait(container, timeout=HELPER_TIMEOUT_S)["StatusCode"])
    log = api.logs(container, stdout=True, stderr=True, tail=20)
    return code, bytes(log)[-HELPER_LOG_BYTES:].decode("utf-8", "replace")


def _root_layer_bytes(api: Any, container: str) -> int:
    # The SDK's own `inspect_container` has no `size`.
    answer = api._get(api._url("/containers/{0}/json", container), params={"size": "1"})
    return int(api._result(answer, True).get("SizeRw") or 0)


def _has_file(api: Any, container: str, path: str) -> bool:
    place = api._url("/containers/{0}/archive", container)
    answer = api.head(place, params={"path": path}, timeout=CALL_TIMEOUT_S)
    if answer.status_code == requests.codes.not_found:
        return False
    api._raise_for_status(answer)
    return True


def _history(api: Any, container: str, until: float) -> list[Happening]:
    wanted = json.dumps({"container": [container], "event": ["oom", "kill"]})
    # The SDK's own `events` has no time limit.
    response = api._get(api._url("/events"), params={"since": "0", "until": str(until), "filters": wanted})
    lines = api._result(response).splitlines()[-MAX_HISTORY:]
    return [_happening(json.loads(line)) for line in lines]


def _happening(event: Mapping[str, Any]) -> Happening:
    attributes = event["Actor"].get("Attributes") or {}
    return Happening(str(event["Action"]), int(event["timeNano"]) / 1e9, str(attributes.get("signal", "")))


def _open_exec(api: Any, container: str, body: dict[str, Any]) -> OpenExec:
    made = api._result(api._post_json(api._url("/containers/{0}/exec", container), data=body), True)
    response = api._post_json(
        api._url("/exec/{0}/start", made["Id"]),
        headers={"Connection": "Upgrade", "Upgrade": "tcp"},
        data={"Tty": False, "Detach": False},
        stream=True,
    )
    try:
        api._raise_for_status(response)
        reader = response.raw._fp.fp
        hijacked = reader.raw._sock
        hijacked.settimeout(0)
        # The SDK's own socket=True forgets what its header parser read too far.
        early = bytes(reader.peek(1))
        return OpenExec(str(made["Id"]), hijacked.dup(), early)
    finally:
        response.close()


def _container(data: Mapping[str, Any]) -> Container:
    labels = data["Config"].get("Labels") or {}
    state = data["State"]
    return Container(
        id=str(data["Id"]),
        name=str(data["Name"]).lstrip("/"),
        home=str(labels.get(HOME_LABEL, "")),
        agent=str(labels.get(AGENT_LABEL, "")),
        spec=str(labels.get(SPEC_LABEL, "")),
        state=str(state["Status"]),
        pid=int(state["Pid"]),
        image=str(data["Config"]["Image"]),
        image_id=str(data["Image"]),
        created=str(data["Created"]),
        exit_code=int(state.get("ExitCode") or 0),
        oom_killed=bool(state.get("OOMKilled")),
        runtime=str(data["HostConfig"].get("Runtime") or ""),
        started=_moment(state.get("StartedAt")),
        finished=_moment(state.get("FinishedAt")),
    )


def _moment(text: object) -> str:
    """Docker says year 1 for never."""
    return "" if not isinstance(text, str) or text.startswith("0001-") else text
