"""The way to the internet in its house: proxy socket, policy, audit, egress, a server, and back."""

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys

import pytest

from beige.supervisor.environment import minimal
from tests.simulator.internet import Town, answer, read_head

MEGABYTE = 1 << 20


@pytest.fixture
def town():
    with contextlib.ExitStack() as stack:
        yield Town(stack)


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)


def page(connection):
    read_head(connection)
    connection.sendall(answer(b"hello"))


def test_a_tunnel_carries_tls_and_is_recorded_with_its_bytes(town):
    shop = town.internet.site("shop.example", page, tls=True)
    town.up(shop.place)
    client = town.client()
    assert client.connect(shop.place).startswith(b"HTTP/1.1 200 ")
    with town.internet.client_tls().wrap_socket(client.socket, server_hostname="shop.example") as tls:
        tls.sendall(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n")
        assert tls.recv(65536).endswith(b"hello")
    started, finished = town.recorded(2)
    assert (started.agent, started.args, started.decision) == ("travel", [shop.place, "CONNECT"], "allowed")
    assert (started.phase, finished.phase, started.rule) == ("started", "finished", shop.place)
    assert started.src == "bridge/0"
    assert finished.input_bytes > 500
    assert finished.output_bytes > 500
    assert finished.error == ""


def test_a_plain_request_is_made_and_its_connection_closed(town):
    heads = []

    def site(connection):
        heads.append(read_head(connection))
        connection.sendall(answer(b"plain", "200 OK", "Keep-Alive: timeout=5", "X-Site: yes"))
        connection.recv(1)

    shop = town.internet.site("shop.example", site)
    town.up(shop.place)
    got = town.client().get(f"http://{shop.place}/a?b=c", "", "Proxy-Connection: keep-alive", "Accept: */*")
    head, _, body = got.partition(b"\r\n\r\n")
    assert (head.splitlines()[0], body) == (b"HTTP/1.1 200 OK", b"plain")
    assert b"connection: close" in head.lower()
    assert b"keep-alive" not in head.lower()
    sent = f"GET /a?b=c HTTP/1.1\r\nHost: {shop.place}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    assert [head.decode().lower() for head in heads] == [sent.lower()]
    assert [(r.args, r.phase, r.error) for r in town.records()] == [
        ([shop.place, "GET"], "started", ""),
        ([shop.place, "GET"], "finished", ""),
    ]


def test_a_plain_request_with_a_body_and_an_unending_answer(town):
    received = []

    def site(connection):
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(65536)
        received.append(data)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * MEGABYTE)

    shop = town.internet.site("shop.example", site)
    town.up(shop.place)
    client = town.client()
    client.send(f"POST http://{shop.place}/ HTTP/1.1\r\nHost: {shop.place}\r\n".encode())
    client.send(b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    got = client.read()
    assert received[0].endswith(b"5\r\nhello\r\n0\r\n\r\n")
    assert got.count(b"x") >= MEGABYTE


def test_a_denial_names_the_rule_to_add(town):
    shop = town.internet.site("shop.example", page)
    town.up("other.example")
    for answered in (town.client().connect(shop.place), town.client().get(f"http://{shop.place}/")):
        assert answered.startswith(
            b"HTTP/1.1 403 Permission denied: agent 'travel' may not connect there; to allow it, add "
        )
        rule = f'agents.travel.sandbox.egress.allow: "{shop.place}"'
        assert f"X-Beige-Egress-Rule: {rule}\r\n".encode() in answered
        assert answered.count(rule.encode()) >= 2
    assert shop.connections == 0
    assert [(r.decision, r.phase) for r in town.records()] == [("denied", "finished")] * 2


def test_a_name_that_does_not_resolve_and_a_port_nobody_serves(town):
    town.internet.name("dead.example", ["127.0.5.1"])
    with socket.create_server(("127.0.5.1", 0)) as taken:
        port = taken.getsockname()[1]
    town.up("*", f"*:{port}")
    assert b"502 the name missing.example can't be resolved" in town.client().connect("missing.example:443")
    assert b"can't be reached: " in town.client().connect(f"dead.example:{port}")
    assert all(r.decision == "allowed" for r in town.records())
    assert [bool(r.error) for r in town.records()] == [False, True] * 2


def test_much_is_carried_both_ways_unchanged(town):
    def mirror(connection):
        digest = hashlib.sha256()
        for _ in range(20):
            data = b""
            while len(data) < MEGABYTE:
                data += connection.recv(MEGABYTE - len(data))
            digest.update(data)
            connection.sendall(data)
        connection.sendall(digest.digest())

    site = town.internet.site("far.example", mirror)
    town.up(site.place)
    client = town.client()
    client.connect(site.place)
    digest = hashlib.sha256()
    sent = os.urandom(MEGABYTE)
    for _ in range(20):
        client.send(sent)
        digest.update(sent)
        back = b""
        while len(back) < MEGABYTE:
            back += client.socket.recv(MEGABYTE - len(back))
        assert back == sent
    assert client.read() == digest.digest()
    finished = town.recorded(2)[1]
    assert finished.input_bytes == 20 * MEGABYTE
    assert finished.output_bytes == 20 * MEGABYTE + 32


def test_the_end_of_what_is_sent_is_passed_on(town):
    def count(connection):
        size = 0
        while data := connection.recv(65536):
            size += len(data)
        connection.sendall(str(size).encode())

    site = town.internet.site("far.example", count)
    town.up(site.place)
    client = town.client()
    client.connect(site.place)
    client.send(b"x" * 100_000)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read() == b"100000"


def test_more_connections_than_allowed_wait_for_their_turn(town):
    site = town.internet.site("far.example", echo)
    town.up(site.place, more=", connections: 2")
    first, second, third = (town.client() for _ in range(3))
    for client in (first, second):
        assert b"200" in client.connect(site.place)
    third.send(f"CONNECT {site.place} HTTP/1.1\r\nHost: {site.place}\r\n\r\n".encode())
    first.send(b"still")
    assert first.socket.recv(5) == b"still"
    assert site.connections == 2
    first.socket.shutdown(socket.SHUT_WR)
    assert b"200" in third.head()


@pytest.mark.parametrize(
    ("limit", "said"),
    [("transferSize: '64k'", "65536 bytes"), ("idleS: 1", "idle for 1 s"), ("durationS: 1", "lasted 1 s")],
)
def test_the_configured_limits_end_a_connection_and_its_record_says_which(town, limit, said):
    def site(connection):
        read_head(connection)
        connection.sendall(b"x" * 100_000 if "transfer" in limit else b"x")
        connection.recv(1)

    far = town.internet.site("far.example", site)
    town.up(far.place, more=f", {limit}")
    client = town.client()
    client.connect(far.place)
    client.send(b"\r\n\r\n")
    assert client.read().startswith(b"x")
    _started, finished = town.recorded(2)
    assert said in finished.error


def test_connections_end_with_egress_and_work_again_after_its_restart(town):
    site = town.internet.site("far.example", echo)
    town.up(site.place)
    client = town.client()
    client.connect(site.place)
    client.send(b"x")
    assert client.socket.recv(1) == b"x"
    town.house.kill("egress")
    assert client.read() == b""
    town.internet.start(town.house)
    again = town.client()
    assert b"200" in again.connect(site.place)
    records = town.records()
    assert [r.phase for r in records] == ["started", "finished", "started"]
    assert "peer_lost" in records[1].error


def test_only_agents_with_egress_have_the_socket_and_it_goes_with_the_configuration(town):
    town.up("a.example")
    assert town.home.egress_socket("travel").is_socket()
    assert town.home.egress_socket("other").is_socket()
    assert not town.home.egress_socket("idle").exists()
    town.house.kill("bridge")
    assert town.home.egress_socket("travel").is_socket()
    town.home.config.write_text(re.sub(r", egress: \{.*?\}", "", town.home.config.read_text()))
    town.house.start("bridge")
    assert not town.home.egress_socket("travel").exists()
    assert not town.home.egress_socket("other").exists()


def test_a_server_that_drops_the_connection_in_the_middle(town):
    def cut(connection):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    site = town.internet.site("far.example", cut)
    town.up(site.place)
    assert town.client().get(f"http://{site.place}/").endswith(b"half")


def test_a_server_that_speaks_no_http(town):
    site = town.internet.site("far.example", lambda c: (read_head(c), c.sendall(b"\x00" * 100))[0])
    town.up(site.place)
    assert town.client().get(f"http://{site.place}/").startswith(b"HTTP/1.1 502 the server did not answer")


def test_certificates_are_the_agents_to_check(town):
    """Nothing in between ends the TLS: a wrong certificate is seen by the client."""
    site = town.internet.site("shop.example", page, tls=True)
    town.up(site.place)
    client = town.client()
    client.connect(site.place)
    with pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(client.socket, server_hostname="shop.example")


def beige(town, *arguments):
    environment = minimal(town.home, {name: os.environ[name] for name in ("PATH", "HOME")})
    command = [sys.executable, "-P", "-m", "beige.cli", "egress", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, cwd="/", text=True, stdout=pipe, stderr=pipe)


def test_learning_prints_the_list_that_would_have_sufficed(town):
    shop, web = (town.internet.site(name, page) for name in ("shop.example", "web.example"))
    town.up(shop.place)
    with beige(town, "learn", "travel", "--json") as learning:
        assert learning.stderr.readline().startswith("LEARNING: travel may connect anywhere for 600 s")
        while not town.client().connect(web.place).startswith(b"HTTP/1.1 200"):
            pass  # it says so before policy knows
        town.client().connect(shop.place)
        said = [learning.stderr.readline() for _ in range(2)]
        learning.send_signal(signal.SIGINT)
        out, err = learning.communicate(timeout=60)
    assert learning.returncode == 0, err
    assert said == [f"MISSING  {web.place}\n", f"listed   {shop.place}\n"]
    report = json.loads(out)
    assert (report["allow"], report["missing"]) == ([shop.place, web.place], [web.place])
    assert town.client().connect(web.place).startswith(b"HTTP/1.1 403")
    town.hang_up()
    with beige(town, "list", "travel", "--json") as listing:
        found = {one["destination"]: one for one in json.loads(listing.communicate(timeout=60)[0])}
    assert (found[shop.place]["rule"], found[web.place]["rule"]) == (shop.place, "learning")
    assert (found[web.place]["allowed"], found[web.place]["denied"] > 0) == (1, True)


def test_learning_needs_an_agent_with_egress(town):
    town.up("a.example")
    with beige(town, "learn", "idle", "--for", "1s") as learning:
        _, err = learning.communicate(timeout=60)
    assert learning.returncode == 1
    assert "agents.idle.sandbox.egress.allow" in err
