"""Asks a Docker engine on a Unix socket what it is, without the Docker SDK. For `beige doctor` only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beige.supervisor.control import UnixConnection

TIMEOUT_S = 10.0
MAX_ANSWER = 4 * 1024 * 1024
DEFAULT_SOCKET = Path("/var/run/docker.sock")


class NoEngine(Exception):
    """No engine answers; `fix` says what to do."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(text)
        self.fix = fix


@dataclass(frozen=True)
class EngineFacts:
    """What matters here of /version and /info."""

    text: str
    api: tuple[int, ...]
    seccomp: bool
    lacks: tuple[str, ...]
    """Limits that the engine's cgroups don't offer."""
    runtimes: Mapping[str, Any]


def probe(environ: Mapping[str, str]) -> EngineFacts | None:
    """None if the engine is not on a Unix socket of this machine. NoEngine if none answers."""
    path = socket_path(environ)
    if path is None:
        return None
    try:
        return facts(_get(path, "/version"), _get(path, "/info"))
    except FileNotFoundError:
        raise NoEngine(
            f"no socket at {path}", "install Docker: scripts/engine.sh does, as root on Debian"
        ) from None
    except PermissionError:
        fix = 'sudo usermod -aG docker "$USER", then log in again'
        raise NoEngine(f"no permission for {path}", fix) from None
    except (OSError, ValueError) as error:
        fix = "sudo systemctl start docker, or scripts/engine.sh"
        raise NoEngine(f"nothing answers at {path} ({error})", fix) from None


def socket_path(environ: Mapping[str, str]) -> Path | None:
    host = environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return Path(host.removeprefix("unix://"))
    if host:
        return None
    rootless = Path(environ.get("XDG_RUNTIME_DIR", "/nonexistent")) / "docker.sock"
    return rootless if not DEFAULT_SOCKET.exists() and rootless.exists() else DEFAULT_SOCKET


def facts(version: dict[str, Any], info: dict[str, Any]) -> EngineFacts:
    api = tuple(int(part) for part in str(version.get("ApiVersion", "0")).split(".") if part.isdigit())
    options = " ".join(info.get("SecurityOptions") or [])
    limits = {"memory": "MemoryLimit", "processes": "PidsLimit", "CPU time": "CpuCfsQuota"}
    name, system = version.get("Version", "?"), info.get("OperatingSystem", "?")
    return EngineFacts(
        text=f"{name} (API {version.get('ApiVersion', '?')}), {system}",
        api=api,
        seccomp="seccomp" in options,
        lacks=tuple(name for name, key in limits.items() if info.get(key) is False),
        runtimes=info.get("Runtimes") or {},
    )


def _get(path: Path, url: str) -> dict[str, Any]:
    connection = UnixConnection(path, TIMEOUT_S)
    try:
        connection.request("GET", url, headers={"Host": "docker"})
        response = connection.getresponse()
        body = response.read(MAX_ANSWER)
        if response.status != 200:
            raise ValueError(f"{url} was answered {response.status}")
        value = json.loads(body)
    finally:
        connection.close()
    if not isinstance(value, dict):
        raise ValueError(f"{url} was answered by no object")
    return value
