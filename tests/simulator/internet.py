"""An internet for tests: servers on 127.0.5.1, names that lead there, and a client of an agent's proxy.

    with ExitStack() as stack:
        town = Town(stack)
        site = town.internet.site("shop.example", handler)
        town.up(site.place)                          # a house whose agent `travel` may connect there
        town.client().connect(site.place)

No packet leaves the machine: the egress process of tests takes this address, and no other, for the internet.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import trustme

from beige import auditlog
from beige.paths import Home
from beige.testing import House, short_home

ADDRESS = "127.0.5.1"
PATIENCE_S = 60
PROGRAM = Path(__file__).with_name("egress_process.py")

Handler = Callable[[socket.socket], None]
"""Serves one connection; closed for it afterwards."""


@dataclass
class Site:
    name: str
    port: int
    connections: int = 0
    """Accepted so far."""

    @property
    def place(self) -> str:
        return f"{self.name}:{self.port}"


class Internet:
    def __init__(self, home: Home) -> None:
        self._names: dict[str, list[Sequence[str]]] = {}
        self._file = home.root / "names.json"
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.ca = trustme.CA()

    def start(self, house: House) -> None:
        self._write()
        house.start("egress", sys.executable, "-P", str(PROGRAM))

    def name(self, name: str, *answers: Sequence[str]) -> None:
        """What the resolver says of `name`, question by question."""
        self._names[name] = list(answers)
        self._write()

    def site(self, name: str, handler: Handler, *, tls: bool = False, port: int = 0) -> Site:
        """A server; with `tls`, one whose certificate of this internet's CA is for `name`."""
        listener = socket.create_server((ADDRESS, port), backlog=256)
        self._listeners.append(listener)
        self.name(name, [ADDRESS])
        site = Site(name, listener.getsockname()[1])
        thread = threading.Thread(target=self._serve, args=(listener, site, handler, tls), daemon=True)
        thread.start()
        self._threads.append(thread)
        return site

    def client_tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        return context

    def _serve(self, listener: socket.socket, site: Site, handler: Handler, tls: bool) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if tls:
            self.ca.issue_cert(site.name).configure_cert(context)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            site.connections += 1
            work = (connection, handler, context if tls else None)
            threading.Thread(target=_serve_one, args=work, daemon=True).start()

    def _write(self) -> None:
        self._file.write_text(json.dumps(self._names))

    def __enter__(self) -> Internet:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def _serve_one(connection: socket.socket, handler: Handler, tls: ssl.SSLContext | None) -> None:
    connection.settimeout(PATIENCE_S)
    try:
        if tls is not None:
            connection = tls.wrap_socket(connection, server_side=True)
        handler(connection)
    except OSError:
        pass  # the client had enough
    finally:
        connection.close()


def read_head(connection: socket.socket) -> bytes:
    """Up to the empty line; what came after it is lost to the reader, so only for requests without more."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(65536)
        if not data:
            break
        received += data
    return received


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class ProxyClient:
    """A program in the container, as far as the bridge can tell."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> bytes:
        """Everything until the other side ends it."""
        received = b""
        while data := self.socket.recv(1 << 20):
            received += data
        return received

    def head(self) -> bytes:
        """The head of an answer, read byte by byte so that nothing after it is."""
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            byte = self.socket.recv(1)
            if not byte:
                break
            received += byte
        return received

    def connect(self, place: str, *headers: str) -> bytes:
        """The head of the answer to CONNECT."""
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}", *headers, "", ""]
        self.send("\r\n".join(lines).encode())
        return self.head()

    def get(self, url: str, host: str = "", *headers: str) -> bytes:
        host = host or url.removeprefix("http://").partition("/")[0]
        self.send("\r\n".join([f"GET {url} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode())
        return self.read()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> ProxyClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


CONFIG = """{ llm: { providers: { demo: { api: "scripted", script: "s.json5" } } }, agents: { AGENTS } }"""
AGENT = """NAME: { model: { provider: "demo", model: "m" }, tools: [], sandbox: { image: "i" EGRESS } }"""


class Town:
    """A house on this internet: broker, policy, audit, egress and bridge as processes. Agent `travel` has
    the rules given to `up`, `other` has egress and no rule, `idle` has no egress."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.home = stack.enter_context(short_home())
        self.internet = stack.enter_context(Internet(self.home))
        self.house = House(self.home)
        self._clients: list[ProxyClient] = []

    def up(self, *allow: str, more: str = "") -> None:
        doors = {
            "travel": f", egress: {{ allow: {json.dumps(allow)} {more} }}",
            "other": ", egress: { allow: [] }",
            "idle": "",
        }
        agents = [AGENT.replace("NAME", name).replace("EGRESS", door) for name, door in doors.items()]
        self.home.config.write_text(CONFIG.replace("AGENTS", ", ".join(agents)))
        (self.home.root / "s.json5").write_text("[]")
        self._stack.enter_context(self.house)
        for name in ("broker", "policy", "audit"):
            self.house.start(name)
        self.internet.start(self.house)
        self.house.start("bridge")

    def client(self, agent: str = "travel") -> ProxyClient:
        client = self._stack.enter_context(ProxyClient(self.home.egress_socket(agent)))
        self._clients.append(client)
        return client

    def hang_up(self) -> None:
        """Close every client, and wait until the record of each connection is closed too."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._until(lambda: not self._open(), "connections stayed open")

    def _open(self) -> set[str]:
        records = self.records()
        return {r.id for r in records if r.phase == "started"} - {
            r.id for r in records if r.phase == "finished"
        }

    def records(self) -> list[auditlog.Record]:
        """Of egress, oldest first. A denial and a plain request are complete when they are answered."""
        found = list(auditlog.records_backwards(self.home.audit_log, 1 << 22))
        return [record for record in reversed(found) if record.type == "egress"]

    def recorded(self, count: int) -> list[auditlog.Record]:
        """The records, once there are `count`: of a tunnel the end is written when both sides let go."""
        self._until(lambda: len(self.records()) >= count, f"no {count} records")
        records = self.records()
        assert len(records) == count, records
        return records

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        pause = threading.Event()
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, otherwise
            pause.wait(0.02)
