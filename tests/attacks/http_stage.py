"""A gateway for attacks on the HTTP API, and raw requests to it: no client library is impolite enough."""

from __future__ import annotations

import contextlib
import json
import re
import socket

from tests.processes.gateway_stage import new_stage

GOOD = "good"


@contextlib.contextmanager
def opened_api():
    with new_stage(cors=["https://app.example.org"], maxConnections=60, readTimeoutS=3) as stage:
        stage.start()
        yield stage
        log = stage.house.log("gateway").splitlines()
        assert [line[-2000:] for line in log if "Traceback" in line] == [], "an attack found an error"


def still_serves(stage):
    """The control of every test: afterwards a well-behaved client is served."""
    with stage.client() as client:
        assert client.get("/api/agents").status_code == 200


class Answer:
    """What came back on a raw connection, up to its end or to `until`."""

    def __init__(self, raw):
        self.raw = raw
        head, _, self.body = raw.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        self.status = int(found[1]) if found else 0
        self.head = head.lower()

    @property
    def code(self):
        return json.loads(self.body)["error"]["code"]


def raw(stage, data, *, deadline_s=60.0):
    """Send bytes as they are; everything that comes back until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", stage.port), timeout=deadline_s) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # it has refused already; why, is read below
        got = b""
        try:
            while piece := connection.recv(65536):
                got += piece
        except ConnectionResetError:
            pass
        return got


def request(stage, line="GET /api/agents HTTP/1.1", *headers, body=b"", token=GOOD, host="localhost"):
    head = [line, *([f"Host: {host}"] if host is not None else []), *headers, "Connection: close"]
    if token:
        head.append(f"Authorization: Bearer {stage.token if token == GOOD else token}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def ask(stage, *more, **options):
    return Answer(raw(stage, request(stage, *more, **options)))
