"""Threat: libzmq's automatic routing ids start at an unseeded rand(); a peer that claims the next
ones makes the ROUTER abort when an anonymous peer is given a taken id."""

import subprocess
import sys
from pathlib import Path

from beige import wire
from beige.keys import read_secret
from beige.testing.zmtp import Zmtp
from beige.wire import Header, decode_header, encode_header

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
    house.start("broker")
    claimed = b"\0" + (0x6B8B4567 + 3).to_bytes(4, "big")
    with Zmtp(house.home.bus_socket) as raw:
        raw.handshake("llm/0", read_secret(house.home, "llm/0"), Identity=claimed)
        raw.send(encode_header(Header(type=wire.HELLO)), b"")
        assert decode_header(raw.receive()[0]).type == wire.RESET
    assert house.processes["broker"].poll() is None
