"""Threat: libzmq's automatic routing ids start at an unseeded rand(); a peer that claims the next
ones makes the ROUTER abort when an anonymous peer is given a taken id."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
FIRST_ID = """
import sys, zmq
if sys.argv[1] == "seeded":
    from broker.router import seed_routing_ids
    seed_routing_ids()
context = zmq.Context()
router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
router.bind("inproc://x"); dealer.connect("inproc://x"); dealer.send(b"")
print(router.recv_multipart()[0].hex())
context.destroy(0)
"""


def first_id(mode):
    done = subprocess.run(
        [sys.executable, "-c", FIRST_ID, mode], capture_output=True, text=True, timeout=30, check=True,
        env={"PYTHONPATH": ROOT},
    )  # fmt: skip
    return done.stdout.strip()


def test_two_brokers_start_at_different_ids():
    assert first_id("seeded") != first_id("seeded")


def test_without_the_seed_they_start_at_the_same_control():
    assert first_id("bare") == first_id("bare")


def test_an_id_of_libzmqs_own_kind_opens_no_session(house):
    """libzmq itself refuses to set such an id, so a raw ZMTP handshake claims it."""
    import socket

    from beige.keys import read_secret

    house.start("broker")
    secret = read_secret(house.home, "llm/0")
    claimed = b"\0" + (0x6B8B4567 + 3).to_bytes(4, "big")
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        raw.connect(str(house.home.bus_socket))
        handshake(raw, b"llm/0", secret.encode(), claimed)
        from beige import wire
        from beige.wire import Header, encode_header

        send_message(raw, [encode_header(Header(type=wire.HELLO)), b""])
        frames = receive_message(raw)
        from beige.wire import decode_header

        assert decode_header(frames[0]).type == wire.RESET
    assert house.processes["broker"].poll() is None


# --- ZMTP 3.1 by hand (RFC 37, PLAIN: RFC 24) -------------------------------------------------------


def handshake(raw, user, secret, identity):
    raw.sendall(b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"PLAIN".ljust(20, b"\0") + b"\0" + b"\0" * 31)
    take(raw, 64)
    command(raw, b"\x05HELLO" + bytes([len(user)]) + user + bytes([len(secret)]) + secret)
    assert read_frame(raw)[1].startswith(b"\x07WELCOME")
    command(raw, b"\x08INITIATE" + prop(b"Socket-Type", b"DEALER") + prop(b"Identity", identity))
    assert read_frame(raw)[1].startswith(b"\x05READY")


def prop(name, value):
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def command(raw, body):
    raw.sendall(b"\x04" + bytes([len(body)]) + body)


def send_message(raw, frames):
    for number, frame in enumerate(frames):
        flags = 1 if number < len(frames) - 1 else 0
        raw.sendall(bytes([flags, len(frame)]) + frame)


def take(raw, count):
    data = b""
    while len(data) < count:
        got = raw.recv(count - len(data))
        if not got:
            pytest.fail("the broker closed the connection")
        data += got
    return data


def read_frame(raw):
    flags = take(raw, 1)[0]
    size = int.from_bytes(take(raw, 8 if flags & 2 else 1), "big")
    return flags, take(raw, size)


def receive_message(raw):
    frames = []
    while True:
        flags, body = read_frame(raw)
        if flags & 4:
            continue  # a command: PING
        frames.append(body)
        if not flags & 1:
            return frames
