"""The relay: what it carries, whom it listens to, and what a rude end of it can't do."""

import os
import select
import socket
import subprocess
import threading
from pathlib import Path

import pytest

MEGABYTE = 1 << 20
PATIENCE_S = 20


class Gateway:
    """Where the relay dials: hands out its connections."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(256)
        self.listener.settimeout(PATIENCE_S)

    def accept(self):
        connection, _ = self.listener.accept()
        connection.settimeout(PATIENCE_S)
        return connection


@pytest.fixture
def gateway(tmp_path):
    started = Gateway(tmp_path / "egress.sock")
    yield started
    started.listener.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(params=["static", "sanitized"])
def relay(request, gateway):
    """A running relay's `dial`, which gives a connected client; it must survive the test."""
    programs = request.getfixturevalue(f"{request.param}_programs")
    port = free_port()
    process = subprocess.Popen([programs / "relay", str(port), gateway.path], stdout=subprocess.PIPE)

    def dial():
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        client.settimeout(PATIENCE_S)
        return client

    dial.process = process
    assert process.stdout.readline() == b"ready\n"
    yield dial
    assert process.poll() is None, "the relay died"
    process.kill()
    process.wait()
    process.stdout.close()


def read_all(connection):
    received = b""
    while data := connection.recv(MEGABYTE):
        received += data
    return received


def test_bytes_and_both_ends_are_carried(relay, gateway):
    asked, answered = os.urandom(3 * MEGABYTE), os.urandom(3 * MEGABYTE)
    with relay() as client, gateway.accept() as inside:

        def serve():
            assert read_all(inside) == asked
            inside.sendall(answered)
            inside.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        client.sendall(asked)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == answered
        thread.join(PATIENCE_S)


def test_it_listens_on_loopback_alone(relay):
    with relay() as client:
        port = f"{client.getpeername()[1]:04X}"
    rows = [line.split() for line in Path(f"/proc/{relay.process.pid}/net/tcp").read_text().splitlines()[1:]]
    assert [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")] == [f"0100007F:{port}"]


def test_an_answer_to_half_a_request_arrives_though_the_gateway_closed_at_once(relay, gateway):
    with relay() as client, gateway.accept() as inside:
        client.sendall(b"x" * 1000)
        inside.sendall(b"HTTP/1.1 403 no\r\n\r\n")
        inside.close()
        assert client.recv(100).startswith(b"HTTP/1.1 403")


def test_without_a_gateway_the_client_is_told(relay, gateway):
    gateway.listener.close()
    with relay() as client:
        assert read_all(client).startswith(b"HTTP/1.1 503 ")


def test_a_client_that_vanishes_is_noticed_by_the_gateway(relay, gateway):
    client = relay()
    with gateway.accept() as inside:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.close()
        assert inside.recv(1) == b""


def test_a_reader_that_does_not_read_stops_the_writer_and_no_other(relay, gateway):
    """Buffers are bounded: a flood ends up waiting at its sender."""
    with relay() as stuck, gateway.accept() as flooded, relay() as client, gateway.accept() as inside:
        flooded.setblocking(False)
        sent = 0
        while select.select([], [flooded], [], 0.5)[1]:
            sent += flooded.send(b"x" * 65536)
        assert sent < 64 * MEGABYTE
        client.sendall(b"ping")
        assert inside.recv(4) == b"ping"
        assert stuck.recv(1) == b"x"


def test_more_connections_than_it_holds_wait_and_are_served_later(relay, gateway):
    held = [(relay(), gateway.accept()) for _ in range(256)]
    with relay() as late:
        late.sendall(b"late")
        for client, inside in held:
            client.close()
            inside.close()
        with gateway.accept() as inside:
            assert inside.recv(4) == b"late"


def test_a_taken_port_ends_it(static_programs, gateway):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([static_programs / "relay", port, gateway.path], capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
