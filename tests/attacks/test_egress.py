"""An agent tries to get out past its list, or to reach what is not on the internet.

A real house (broker, policy, audit, egress, bridge) on an internet of the test's own; each attempt has its
control, the same connection where it is allowed. The containers' part: tests/docker/test_sandbox_open.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl

import pytest

from tests.attacks.egress_scene import Scene, status
from tests.simulator.internet import ADDRESS

BAD = {
    "loopback": "127.0.0.1",
    "private": "10.0.0.5",
    "metadata": "169.254.169.254",
    "carrier": "100.64.0.1",
    "unspecified": "0.0.0.0",
    "multicast": "224.0.0.1",
    "loopback6": "::1",
    "mapped": "::ffff:10.0.0.1",
    "mapped-loopback": "::ffff:127.0.0.1",
    "nat64": "64:ff9b::a00:1",
    "6to4": "2002:a00:1::1",
    "local6": "fd00:ec2::254",
    "link6": "fe80::1",
}


@pytest.fixture(scope="module")
def whole_scene():
    with contextlib.ExitStack() as stack:
        yield Scene(stack)


@pytest.fixture
def scene(whole_scene):
    yield whole_scene
    whole_scene.hang_up()


# --- where it leads -------------------------------------------------------------------------------------


def test_an_unlisted_host_is_denied_before_its_name_is_resolved(scene):
    scene.internet.name("unlisted.example", [ADDRESS])
    answered = scene.client().connect(f"unlisted.example:{scene.web.port}")
    assert status(answered) == 403
    assert status(scene.client().connect(scene.web.place)) == 200
    decided = {r.args[0]: r.decision for r in scene.records()}
    assert decided[f"unlisted.example:{scene.web.port}"] == "denied"
    assert decided[scene.web.place] == "allowed"


@pytest.mark.parametrize("address", BAD.values(), ids=BAD)
def test_a_listed_name_that_leads_inside_is_refused(scene, address):
    """Alone, and hidden among addresses that are on the internet."""
    for name, answers in (("inside.example", [address]), ("mixed.example", [ADDRESS, address])):
        scene.internet.name(name, answers)
        answered = scene.client().connect(f"{name}:{scene.port}")
        assert status(answered) == 403, answered
        assert b"egress reaches the internet only" in answered
        assert address.encode() not in answered, "the agent learns an address of the operator's network"
        assert address in scene.records()[-1].error
    assert scene.inner_untouched()


def test_the_same_names_are_reached_where_they_lead_to_the_internet_control(scene):
    for name in ("inside.example", "mixed.example"):
        scene.internet.name(name, [ADDRESS])
        assert status(scene.client().connect(f"{name}:{scene.port}")) == 200


@pytest.mark.parametrize("address", BAD.values(), ids=BAD)
def test_an_address_inside_is_refused_as_it_is_too(scene, address):
    host = f"[{address}]" if ":" in address else address
    assert status(scene.client().connect(f"{host}:{scene.port}")) == 403
    assert scene.inner_untouched()


TWO_WAYS = [
    "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "0x7F.0.0.1", "017700000001",
    "127.0.0.1%2eexample", "user@127.0.0.1", "[::1%25lo]", "[::ffff:127.0.0.1", "127。0。0。0x1", "a..b",
]  # fmt: skip


@pytest.mark.parametrize("host", TWO_WAYS)
def test_a_host_that_can_be_read_in_two_ways_is_refused(scene, host):
    before = len(scene.records())
    assert status(scene.client().connect(f"{host}:{scene.port}")) == 400
    plain = scene.client().get(f"http://{host}:{scene.port}/", f"{host}:{scene.port}")
    assert status(plain) == 400
    assert len(scene.records()) == before
    assert scene.inner_untouched()


def test_a_name_that_answers_differently_the_second_time_gains_nothing(scene):
    """Rebinding: one question per connection, and the connection goes to the address that was checked."""
    scene.internet.name("rebind.example", [ADDRESS], ["127.0.0.1"], [ADDRESS])
    place = f"rebind.example:{scene.port}"
    first = scene.client()
    assert status(first.connect(place)) == 200
    assert first.socket.recv(5) == b"outer"
    assert status(scene.client().connect(place)) == 403
    assert status(scene.client().connect(place)) == 200
    assert scene.inner_untouched()


def test_a_redirect_inside_is_a_new_request_and_refused(scene):
    redirected = scene.client().get(f"http://{scene.web.place}/redirect")
    assert status(redirected) == 302
    url = redirected.partition(b"Location: ")[2] or redirected.partition(b"location: ")[2]
    assert status(scene.client().get(url.split(b"\r\n")[0].decode())) == 403
    assert scene.inner_untouched()


def test_another_port_of_a_listed_host_is_denied(scene):
    for port in (22, 80, 443, scene.shop.port):
        assert status(scene.client().connect(f"web.example:{port}")) == 403
    assert status(scene.client().connect(scene.web.place)) == 200


# --- what is said inside ------------------------------------------------------------------------------------


def shake(scene, name):
    """TLS for `name` through a tunnel to the shop."""
    client = scene.client()
    assert status(client.connect(scene.shop.place)) == 200
    context = scene.internet.client_tls()
    context.check_hostname = False
    with context.wrap_socket(client.socket, server_hostname=name) as tls:
        tls.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return tls.recv(65536)


def test_tls_for_another_server_ends_the_connection_before_a_byte_went_out(scene):
    before = scene.shop.connections, len(scene.reached)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(scene, "web.example")
    scene.hang_up()
    record = scene.records()[-1]
    assert (record.phase, record.input_bytes) == ("finished", 0)
    assert "TLS for 'web.example'" in record.error
    assert len(scene.reached) == before[1]
    assert shake(scene, "shop.example").endswith(b"shop")


def test_tls_that_names_no_server_ends_the_connection(scene):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(scene, None)


def test_a_host_header_for_another_site_is_refused(scene):
    before = len(scene.heads)
    for host in (
        "other.example",
        f"other.example:{scene.web.port}",
        "web.example",
        f"web.example:{scene.port}",
    ):
        assert status(scene.client().get(f"http://{scene.web.place}/", host)) == 400
    two = f"GET http://{scene.web.place}/ HTTP/1.1\r\nHost: {scene.web.place}\r\nHost: other.example\r\n\r\n"
    client = scene.client()
    client.send(two.encode())
    assert status(client.read()) == 400
    assert len(scene.heads) == before
    assert status(scene.client().get(f"http://{scene.web.place}/")) == 200


SMUGGLED = {
    "two lengths": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "different lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "a length with a sign": b"Content-Length: +5\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n",
    "two codings": b"Transfer-Encoding: chunked, identity\r\n",
    "space before the colon": b"Transfer-Encoding : chunked\r\n",
    "a NUL": b"X: a\0b\r\n",
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED)
def test_a_request_with_two_readings_is_refused(scene, headers):
    before = len(scene.heads)
    client = scene.client()
    client.send(f"POST http://{scene.web.place}/ HTTP/1.1\r\nHost: {scene.web.place}\r\n".encode() + headers)
    client.send(b"\r\n0\r\n\r\nGET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n")
    assert status(client.read()) in (400, 501)
    assert len(scene.heads) == before


def test_a_second_request_on_the_connection_goes_nowhere(scene):
    before, records = len(scene.heads), len(scene.records())
    client = scene.client()
    one = f"GET http://{scene.web.place}/first HTTP/1.1\r\nHost: {scene.web.place}\r\n\r\n"
    client.send((one + one.replace("first", "second")).encode())
    assert client.read().count(b"HTTP/1.1 200") == 1
    assert [head.split(b" ")[1] for head in scene.heads[before:]] == [b"/first"]
    assert len(scene.records()) == records + 2


def test_what_follows_a_denial_goes_nowhere(scene):
    before = scene.web.connections
    client = scene.client()
    client.send(f"CONNECT denied.example:{scene.web.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    client.send(f"GET http://{scene.web.place}/after HTTP/1.1\r\nHost: {scene.web.place}\r\n\r\n".encode())
    answered = client.read()
    assert status(answered) == 403
    assert answered.count(b"HTTP/1.1") == 1
    assert scene.web.connections == before


def test_a_head_without_end_is_refused(scene):
    client = scene.client()
    client.send(f"GET http://{scene.web.place}/ HTTP/1.1\r\n".encode())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for n in range(2000):
            client.send(f"X-{n}: {'x' * 50}\r\n".encode())
    assert status(client.read()) == 431


@pytest.mark.parametrize(
    "junk", [b"\x00" * 100, b"\x16\x03\x01" + os.urandom(400), b"SSH-2.0-x\r\n", b"\r\n" * 50]
)
def test_what_is_no_http_is_answered_or_closed(scene, junk):
    client = scene.client()
    client.send(junk)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.read()[:13] in (b"", b"HTTP/1.1 400 ")
