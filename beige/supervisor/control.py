"""Talks to supervisord: XML-RPC over its Unix socket, every request with a deadline."""

from __future__ import annotations

import contextlib
import http.client
import socket
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beige.errors import BeigeError, Failed, NotFound, Unavailable
from beige.paths import Home

TIMEOUT_S = 30.0
"""Longest a single request may take; stopping one program waits for its process."""


@dataclass(frozen=True)
class ProcessState:
    """What supervisord says about one process."""

    name: str
    """`llm`, or `llm-0` when there are several."""
    program: str
    state: str
    """STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL or UNKNOWN."""
    pid: int
    up_s: float
    description: str


class ShuttingDown(Unavailable):
    """Somebody else has told supervisord to stop; it is at it."""


class Control:
    """One supervisord, by its home. Raises Unavailable when it doesn't answer."""

    def __init__(self, home: Home, timeout_s: float = TIMEOUT_S) -> None:
        transport = _UnixTransport(home.run / "supervisord.sock", timeout_s)
        self._server = xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=transport)

    def answers(self) -> bool:
        try:
            self._call("supervisor.getState")
        except Unavailable:
            return False
        return True

    def pid(self) -> int:
        return int(self._call("supervisor.getPID"))

    def processes(self) -> list[ProcessState]:
        return [_state(info) for info in self._call("supervisor.getAllProcessInfo")]

    def restart(self, program: str) -> None:
        """Stop and start every process of `program`; returns when they were started."""
        self._call("supervisor.stopProcessGroup", program)
        self._call("supervisor.startProcessGroup", program, False)

    def shutdown(self) -> None:
        """Ask it to stop everything and end; it answers before it has. Not an error if it is at it."""
        with contextlib.suppress(ShuttingDown):
            self._call("supervisor.shutdown")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._server, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            raise _error(fault.faultString) from None
        except TimeoutError:
            raise Unavailable("supervisord doesn't answer in time", executed="maybe") from None
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            raise Unavailable(f"supervisord is not running ({type(error).__name__})") from None


def _error(fault: str) -> BeigeError:
    if fault.startswith("BAD_NAME"):
        return NotFound(f"supervisord: {fault}")
    if fault.startswith("SHUTDOWN_STATE"):
        return ShuttingDown("supervisord is stopping everything right now")
    return Failed(f"supervisord: {fault}")


def _state(info: dict[str, Any]) -> ProcessState:
    running = info["statename"] == "RUNNING"
    return ProcessState(
        name=info["name"],
        program=info["group"],
        state=info["statename"],
        pid=info["pid"],
        up_s=float(info["now"] - info["start"]) if running else 0.0,
        description=info["spawnerr"] or info["description"],
    )


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except BaseException:
            self.sock.close()
            raise


class _UnixTransport(xmlrpc.client.Transport):
    """One connection per request: supervisord may be restarted between two."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__()
        self._path, self._timeout_s = path, timeout_s

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return UnixConnection(self._path, self._timeout_s)

    def single_request(self, host: Any, handler: str, request_body: Any, verbose: bool = False) -> Any:
        self.verbose = verbose
        connection = self.make_connection(host)
        try:
            connection.request("POST", handler, request_body, {"Content-Type": "text/xml"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise xmlrpc.client.ProtocolError("supervisord", response.status, response.reason, {})
            return self.parse_response(response)
        finally:
            connection.close()
