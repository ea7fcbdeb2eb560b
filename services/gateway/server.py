"""Touches the listening sockets: TCP (or TLS) and a Unix socket, each with a uvicorn server.

A TCP port that is taken is no reason to end: it is said, tried again, and everything else goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from beige.config import GatewayConfig
from beige.config.gateway_checks import loopback
from beige.errors import ConfigError
from beige.keys import write_private
from beige.paths import Home
from services.gateway.http11 import HEAD_S, KEEP_ALIVE_S, MAX_HEAD_BYTES, Connection

RETRY_S = 2.0
BACKLOG = 512
OWN_FILES = 256
GRACE_S = 2
"""How long answers under way may take when the gateway stops."""
log = logging.getLogger("gateway")


class Servers:
    """What the process listens at."""

    def __init__(self, home: Home, config: GatewayConfig, app: ASGIApp) -> None:
        """ConfigError if it would listen beyond this machine without TLS and without being told to."""
        if not loopback(config.host) and config.tls is None and not config.insecure_bind:
            raise ConfigError("gateway.host", f"{config.host!r} is reachable from other machines",
                              "set gateway.tls, or gateway.insecureBind: true")  # fmt: skip
        self._home, self._config, self._app = home, config, app
        self._servers: list[tuple[uvicorn.Server, socket.socket]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._protocol = type("Connection", (Connection,), {
            "max_connections": config.max_connections, "head_s": min(HEAD_S, config.read_timeout_s),
        })  # fmt: skip
        self.problem = ""
        """Why it does not listen at its TCP address, in words."""

    async def start(self) -> None:
        """Listen at the Unix socket now, and at the TCP address as soon as it is free."""
        self._remove_address()
        _allow_files(self._config.max_connections)
        await self._serve(_unix_socket(self._home.http_socket), None)
        if not await self._try_tcp():
            log.error("%s; trying again every %d s", self.problem, RETRY_S)
            self._tasks.append(asyncio.create_task(self._retry(), name="http bind"))

    async def stop(self) -> None:
        """Take nothing new, finish what is under way within `GRACE_S`."""
        self._remove_address()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.shutdown(sockets=[bound]) for server, bound in self._servers))
        self._home.http_socket.unlink(missing_ok=True)

    async def _retry(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            if await self._try_tcp():
                return

    async def _try_tcp(self) -> bool:
        config = self._config
        try:
            bound = _tcp_socket(config.host, config.port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            self.problem = f"can't listen at {config.host}:{config.port} ({reason}): set gateway.port"
            return False
        self.problem = ""
        port = bound.getsockname()[1]
        await self._serve(bound, self._tls())
        scheme = "https" if config.tls else "http"
        host = f"[{config.host}]" if ":" in config.host else config.host
        write_private(self._home.http_address, f"{scheme}://{host}:{port}\n")
        log.info("serving HTTP", extra={"url": f"{scheme}://{host}:{port}"})
        return True

    async def _serve(self, bound: socket.socket, tls: tuple[Path, Path] | None) -> None:
        files: dict[str, Any] = {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]} if tls else {}
        settings = uvicorn.Config(
            self._app, http=self._protocol, ws="none", lifespan="off", interface="asgi3", log_config=None,
            access_log=False, proxy_headers=False, server_header=False, backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES, **files,
        )  # fmt: skip
        try:
            settings.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("gateway.tls", f"can't be used ({error})") from None
        server = uvicorn.Server(settings)
        server.lifespan = settings.lifespan_class(settings)
        await server.startup(sockets=[bound])
        self._servers.append((server, bound))
        self._tasks.append(asyncio.create_task(server.main_loop(), name="http clock"))

    def _tls(self) -> tuple[Path, Path] | None:
        tls, base = self._config.tls, self._home.config.parent
        return (base / tls.cert, base / tls.key) if tls else None

    def _remove_address(self) -> None:
        self._home.http_address.unlink(missing_ok=True)


def _allow_files(connections: int) -> None:
    """Room for so many connections beside our own files; as much as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OWN_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tcp_socket(host: str, port: int) -> socket.socket:
    """A bound socket. OSError if that is not possible."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _unix_socket(path: Path) -> socket.socket:
    """A bound socket that only this user can reach: its directory is 0700, and so is what it is made with."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(before)
    bound.setblocking(False)
    return bound
