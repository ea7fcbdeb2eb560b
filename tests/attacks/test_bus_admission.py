"""Threat: a local process tries to join the bus, or a process of one role to be another.

Each refusal has its control: the same connection with the right secret is admitted.
"""

import json
import os
import stat

import pytest

from beige.keys import read_secret
from beige.testing import RawPeer


@pytest.fixture
def bus(house):
    house.start("broker")
    return house


def test_the_right_secret_is_admitted_control(bus):
    with RawPeer(bus.home.bus_endpoint, "llm/0", read_secret(bus.home, "llm/0")) as peer:
        assert peer.admitted
        assert peer.hello().epoch


@pytest.mark.parametrize(
    ("user", "secret"),
    [
        (None, None),
        ("llm/0", "x"),
        ("llm/0", "0" * 64),
        ("policy/0", "llm's"),
        ("nobody/0", "llm's"),
        ("llm", "llm's"),
        ("llm/0\0policy/0", "llm's"),
    ],
    ids=[
        "no credentials",
        "short secret",
        "wrong secret",
        "another role",
        "unknown",
        "no instance",
        "NUL trick",
    ],
)
def test_a_peer_without_its_secret_is_not_admitted(bus, user, secret):
    secret = read_secret(bus.home, "llm/0") if secret == "llm's" else secret
    with RawPeer(bus.home.bus_endpoint, user, secret, wait_s=1.0) as peer:
        assert not peer.admitted


def test_the_right_secret_from_the_wrong_uid_is_not_admitted(house):
    """The kernel's word for the peer's uid counts, not only the secret (here: the table says the
    secret belongs to another uid than ours)."""
    path = house.home.keys / "bus-users.json"
    table = json.loads(path.read_text())
    table["llm/0"]["uid"] = os.getuid() + 1
    path.write_text(json.dumps(table))
    house.start("broker")
    with RawPeer(house.home.bus_endpoint, "llm/0", read_secret(house.home, "llm/0"), wait_s=1.0) as peer:
        assert not peer.admitted
    with RawPeer(house.home.bus_endpoint, "cli/0", read_secret(house.home, "cli/0")) as control:
        assert control.admitted


def test_the_unredacted_feed_is_for_the_tap_alone(bus):
    import zmq

    for user, expected in (("llm/0", False), ("cli/0", False), ("tap/0", True)):
        secret = read_secret(bus.home, user)
        with RawPeer(bus.home.tap_feed_endpoint, user, secret, kind=zmq.PULL, wait_s=1.0) as peer:
            assert peer.admitted is expected, user


def test_socket_and_keys_are_private_to_the_user(bus):
    for path in (bus.home.run, bus.home.keys, bus.home.keys / "bus"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in [bus.home.bus_socket, *(bus.home.keys / "bus").iterdir(), bus.home.keys / "verdict.key"]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_second_broker_for_the_same_home_refuses_to_start(bus):
    first = bus.processes["broker"]
    with pytest.raises(RuntimeError, match="a broker already runs"):
        bus.start("broker/2")
    assert first.poll() is None
    with RawPeer(bus.home.bus_endpoint, "llm/0", read_secret(bus.home, "llm/0")) as peer:
        assert peer.hello().epoch


def test_a_message_before_hello_opens_no_session(bus):
    from beige import wire
    from beige.wire import Header

    with RawPeer(bus.home.bus_endpoint, "cli/0", read_secret(bus.home, "cli/0")) as peer:
        peer.send(Header(type=wire.CALL, id=1, service="bus", method="stats"), b"\x80")
        assert peer.receive()[0].type == wire.RESET


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"junk", b""],
        [b"\x93\x01\x03", b""],
        [b"\x91" * 9000, b""],
        [b"a", b"b", b"c"],
        [b"x" * 9000, b""],
    ],
    ids=["one frame", "junk", "cut header", "deep header", "three frames", "long header"],
)
def test_garbage_is_counted_answered_and_harms_nobody(bus, message):
    with (
        RawPeer(bus.home.bus_endpoint, "llm/0", read_secret(bus.home, "llm/0")) as peer,
        RawPeer(bus.home.bus_endpoint, "cli/0", read_secret(bus.home, "cli/0")) as honest,
    ):
        peer.hello()
        peer.socket.send_multipart(message)
        assert peer.receive()[0].code == "malformed"
        assert honest.hello().epoch


def test_a_body_over_the_limit_is_refused(bus):
    from beige import wire
    from beige.wire import Header

    with RawPeer(bus.home.bus_endpoint, "cli/0", read_secret(bus.home, "cli/0")) as peer:
        peer.hello()
        peer.send(Header(type=wire.CALL, id=1, service="bus", method="stats"), b"x" * (wire.MAX_BODY + 1))
        assert peer.receive()[0].code == "malformed"
