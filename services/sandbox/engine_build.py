"""What building the image needs from Docker's engine: the only other `import docker` beside `engine`.

Foreign errors are translated here, once: `Unavailable` when no engine answers, `Failed` when it refuses.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import docker
import docker.errors
import requests

from beige.errors import Failed, Unavailable

READ_TIMEOUT_S = 900
"""A build step may be silent for as long as a slow package download takes."""

CONNECT_TIMEOUT_S = 5

DOCKER_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class ImageInfo:
    id: str
    """`sha256:...`"""
    labels: dict[str, str]


class BuildEngine(Protocol):
    """Every call ends within `READ_TIMEOUT_S` of the engine's last sign of life, or raises."""

    def architecture(self) -> str:
        """As `uname -m` says it: x86_64, aarch64."""

    def find(self, reference: str) -> ImageInfo | None: ...

    def pull(self, reference: str, patience_s: float) -> bool:
        """False when the registry does not offer the image, or sends no layer within `patience_s`."""

    def import_tar(self, tar: Path, reference: str, changes: list[str]) -> None: ...

    def build(
        self,
        context: BinaryIO,
        reference: str,
        *,
        target: str,
        arguments: dict[str, str],
        labels: dict[str, str],
        on_line: Callable[[str], None],
    ) -> str:
        """The new image's id. `context` is a tar of the build context."""

    def unnamed(self, label: str) -> set[str]:
        """Ids of the images without a name that carry `label`."""

    def discard(self, image_id: str) -> None:
        """Remove an image if nothing uses it; otherwise leave it."""


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise Failed(f"{doing}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)


def _check_local_socket() -> None:
    """A plain connect() before the SDK's: that buries the cause under three layers of its own, and
    leaves its socket open."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not host.startswith("unix://"):
        return
    path = host.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CONNECT_TIMEOUT_S)
            probe.connect(path)
    except OSError as error:
        raise Unavailable(f"no Docker engine answers at {path}: {error.strerror or error}") from error


def connect() -> DockerBuildEngine:
    """The engine that DOCKER_HOST names, or the local one. Raises `Unavailable`."""
    _check_local_socket()
    try:
        client = docker.from_env(version="auto", timeout=READ_TIMEOUT_S)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise Unavailable(f"no Docker engine answers ({_reason(error)})") from error
    return DockerBuildEngine(client)


class DockerBuildEngine:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._api = client.api

    def close(self) -> None:
        self._client.close()

    def architecture(self) -> str:
        with _translated("asking the engine for its version"):
            named = str(self._api.version()["Arch"])
        return DOCKER_ARCHITECTURES.get(named, named)

    def find(self, reference: str) -> ImageInfo | None:
        with _translated(f"looking for {reference}"):
            try:
                found = self._api.inspect_image(reference)
            except docker.errors.ImageNotFound:
                return None
        return ImageInfo(found["Id"], dict((found.get("Config") or {}).get("Labels") or {}))

    def pull(self, reference: str, patience_s: float) -> bool:
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        # A thread nobody waits for: the SDK offers no deadline for a registry that does not answer.
        threading.Thread(target=self._pull_into, args=(reference, events), daemon=True).start()
        patience: float | None = patience_s
        while True:
            try:
                event = events.get(timeout=patience)
            except queue.Empty:
                return False
            if event is None:
                return self.find(reference) is not None
            if "error" in event:
                return False
            if event.get("id"):  # a layer is coming: from here on only the download's speed counts
                patience = READ_TIMEOUT_S

    def _pull_into(self, reference: str, events: queue.Queue[dict[str, Any] | None]) -> None:
        try:
            for event in self._api.pull(reference, stream=True, decode=True):
                events.put(event)
            events.put(None)
        except (docker.errors.DockerException, requests.RequestException) as error:
            events.put({"error": _reason(error)})

    def import_tar(self, tar: Path, reference: str, changes: list[str]) -> None:
        repository, _, tag = reference.partition(":")
        with _translated(f"importing {reference}"):
            self._api.import_image_from_file(str(tar), repository=repository, tag=tag, changes=changes)
        if self.find(reference) is None:
            raise Failed(f"the engine did not accept {tar.name} as {reference}")

    def build(
        self,
        context: BinaryIO,
        reference: str,
        *,
        target: str,
        arguments: dict[str, str],
        labels: dict[str, str],
        on_line: Callable[[str], None],
    ) -> str:
        recent: list[str] = []
        with _translated("docker build"):
            for event in self._api.build(
                fileobj=context, custom_context=True, tag=reference, target=target, buildargs=arguments,
                labels=labels, rm=True, forcerm=True, decode=True,
            ):  # fmt: skip
                self._note(event, recent, on_line)
        built = self.find(reference)
        if built is None:
            raise Failed("docker build ended without an image:\n" + "\n".join(recent))
        return built.id

    @staticmethod
    def _note(event: dict[str, Any], recent: list[str], on_line: Callable[[str], None]) -> None:
        for line in str(event.get("stream", "")).splitlines():
            if line.strip():
                on_line(line)
                recent.append(line)
        del recent[:-20]
        if "error" in event:
            raise Failed("docker build: " + "\n".join([*recent, str(event["error"])]))

    def unnamed(self, label: str) -> set[str]:
        with _translated("listing images"):
            found = self._api.images(filters={"dangling": True, "label": label})
        return {str(entry["Id"]) for entry in found}

    def discard(self, image_id: str) -> None:
        with contextlib.suppress(docker.errors.APIError):
            self._api.remove_image(image_id)
