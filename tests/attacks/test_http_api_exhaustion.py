"""Threat: a client uses the HTTP API up: big, endless or slow requests, connections, unread answers.

A real gateway of a real house, spoken to over raw sockets where a client library would be too polite.
"""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.attacks.http_stage import Answer, ask, opened_api, raw, request, still_serves
from tests.processes.gateway_stage import until


@pytest.fixture(scope="module")
def stage():
    with opened_api() as stage:
        yield stage


@pytest.fixture(autouse=True)
def control(stage):
    yield
    still_serves(stage)


# --- sizes --------------------------------------------------------------------------------------------


def test_a_body_of_10_mb_is_refused(stage):
    size = 10 * 1024 * 1024
    told = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
               f"Content-Length: {size}", body=b"x" * size)  # fmt: skip
    assert (told.status, told.code) == (413, "too_large")
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    untold = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                 "Transfer-Encoding: chunked", body=piece * 160)  # fmt: skip
    assert (untold.status, untold.code) == (413, "too_large")
    with stage.client() as client:
        write = {"tool": "write", "params": {"path": "m", "content": "x" * 1_500_000}}
        fine = client.post("/api/agents/travel/exec", json=write)
        assert fine.status_code == 200, "control: one below the limit is taken"


def test_without_a_token_no_body_is_read(stage):
    refused = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Length: 1000000",
                  "Expect: 100-continue", token="")  # fmt: skip
    assert refused.status == 401
    assert not refused.raw.startswith(b"HTTP/1.1 100"), "it is not even asked to send it"
    assert b"connection: close" in refused.head


@pytest.mark.parametrize("count", [65, 1000, 10_000, 100_000])
def test_thousands_of_headers_are_refused(stage, count):
    answer = ask(stage, "GET /api/health HTTP/1.1", *[f"x{n}: y" for n in range(count)])
    assert answer.status in (400, 431), answer.raw[:200]
    assert ask(stage, "GET /api/health HTTP/1.1", *[f"x{n}: y" for n in range(50)]).status == 200, "control"


def test_a_head_without_end_is_refused(stage):
    for data in (
        b"GET /api/health HTTP/1.1\r\nx: " + b"y" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
        b"G" * 200_000,
    ):
        answer = Answer(raw(stage, data))
        assert answer.status in (0, 400)
    assert ask(stage, f"GET /api/agents?x={'y' * 5000} HTTP/1.1").status == 414


ODD_JSON = [
    b"[" * 100_000, b'{"text":' + b"[" * 50_000, b"{}", b"null", b'{"text":1}', b'{"text":"\xff"}', b"", b"{",
    b'{"text":"\\ud800"}', b'{"text":""}', b'{"text":"x","more":1}', b'{"text":"x"} x',
]  # fmt: skip


def test_deep_and_odd_json_is_refused(stage):
    for body in ODD_JSON:
        answer = ask(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                     f"Content-Length: {len(body)}", body=body)  # fmt: skip
        assert (answer.status, answer.code) == (400, "malformed"), body[:40]


# --- slowness -----------------------------------------------------------------------------------------


def test_slow_headers_end(stage):
    """Connections that say a little, again and again, are answered and closed, all of them; others are
    served meanwhile."""
    opened = [socket.create_connection(("127.0.0.1", stage.port), timeout=60) for _ in range(20)]
    over = threading.Event()

    def dribble():
        while not over.wait(0.5):
            for connection in opened:
                try:
                    connection.sendall(b"x-slow: 1\r\n")
                except OSError:
                    pass

    for connection in opened:
        connection.sendall(b"GET /api/health HTTP/1.1\r\n")
    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with stage.client() as client:
            assert client.get("/api/health").status_code == 200
        for connection in opened:
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")
    finally:
        over.set()
        thread.join()
        for connection in opened:
            connection.close()


def test_silent_connections_end(stage):
    with socket.create_connection(("127.0.0.1", stage.port), timeout=60) as silent:
        assert silent.recv(100).startswith(b"HTTP/1.1 408")


def test_a_body_that_never_ends_is_given_up(stage):
    """Told 413 or 408, and then no longer read."""
    head = request(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    with socket.create_connection(("127.0.0.1", stage.port), timeout=90) as connection:
        connection.sendall(head)
        connection.settimeout(0.2)
        got, ended, end = b"", False, time.monotonic() + 90
        while not ended:
            assert time.monotonic() < end, "it is still listening"
            try:
                connection.sendall(b"1\r\nx\r\n")
                piece = connection.recv(65536)
                got, ended = got + piece, not piece
            except TimeoutError:
                continue
            except OSError:
                ended = True
    assert Answer(got).status == 408


def test_a_flood_that_ignores_its_refusal_is_cut_off(stage):
    """The body goes on for ever after the 413."""
    head = request(stage, "POST /api/agents/travel/prompt HTTP/1.1", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", stage.port), timeout=60) as connection:
        connection.sendall(head)
        sent, end = 0, time.monotonic() + 60
        try:
            while time.monotonic() < end:
                connection.sendall(piece)
                sent += len(piece)
            pytest.fail(f"it took {sent} bytes and went on")
        except OSError:
            pass


def test_too_many_connections_are_refused_and_cost_the_others_nothing(stage):
    """`maxConnections` is 60 here."""
    with stage.client() as client:
        assert client.get("/api/health").status_code == 200
        opened = []
        try:
            answers = []
            for _ in range(100):
                opened.append(socket.create_connection(("127.0.0.1", stage.port), timeout=20))
            for connection in opened[80:]:
                answers.append(connection.recv(65536))
            assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
            assert client.get("/api/health").status_code == 200, "who is in is served"
        finally:
            for connection in opened:
                connection.close()

    def free():
        return ask(stage, "GET /api/health HTTP/1.1").status == 200

    until(free, "there is room again")


def test_a_client_that_does_not_read_costs_others_nothing(stage):
    """It asks for a history bigger than every buffer on the way, and reads none of it."""
    with stage.client() as client:
        client.post(
            "/api/agents/travel/exec",
            json={"tool": "write", "params": {"path": "h", "content": "y" * 250_000}},
        )
    read = b'{"tool":"read","params":{"path":"h"}}'
    one = request(stage, "POST /api/agents/travel/exec HTTP/1.1", "Content-Type: application/json",
                  f"Content-Length: {len(read)}", body=read)  # fmt: skip
    one = one.replace(b"Connection: close\r\n", b"")
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(60)
        stuck.connect(("127.0.0.1", stage.port))
        stuck.sendall(one * 20)
        with stage.client() as client:
            for _ in range(20):
                assert client.get("/api/agents").status_code == 200
