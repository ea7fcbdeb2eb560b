"""The fast path and the public API behave the same."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import zmq
from beige import frames
assert (frames._send is zmq.Socket.send) == {plain}, "the variant under test is not the one loaded"
context = zmq.Context()
router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
router.linger = dealer.linger = 0
router.router_mandatory = 1
router.bind("inproc://x")
dealer.connect("inproc://x")
def take(function, socket):
    for _ in range(1000):
        try:
            return function(socket)
        except frames.Again:
            socket.poll(1)
    raise SystemExit("nothing came")
for body in (b"", b"small", b"x" * 200_000):
    frames.send_two(dealer, b"header", body)
    rid, header, got = take(frames.recv_routed, router)
    assert (header, bytes(got)) == (b"header", body)
    frames.send_routed(router, rid.bytes, b"answer", got)
    assert take(frames.recv_two, dealer) == (b"answer", body)
for odd in ([b"one"], [b"1", b"2", b"3"], [b"1", b"2", b"3", b"4"]):
    dealer.send_multipart(odd)
    rid, header, got = take(frames.recv_routed, router)
    assert (header, got) == (b"", b""), odd
    router.send_multipart([rid.bytes, *odd])
    if len(odd) != 2:
        assert take(frames.recv_two, dealer) is None
frames.send_two(dealer, b"in", b"step")
assert take(frames.recv_routed, router)[1] == b"in"
assert not frames.has_input(dealer)
try:
    frames.send_routed(router, b"nobody", b"h", b"b")
    raise SystemExit("a message to nobody was taken")
except frames.ZMQError as error:
    assert error.errno == zmq.EHOSTUNREACH
context.destroy(0)
print("same")
"""


@pytest.mark.parametrize("plain", [False, True], ids=["fast path", "public API"])
def test_two_frames_in_two_frames_out(plain):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(plain=plain)],
        env={"BEIGE_PLAIN_ZMQ": "1" if plain else "0", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.strip() == "same", done.stderr
