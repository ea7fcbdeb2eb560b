"""Threat: a process with a valid secret abuses the transport: metadata, routing ids, sizes, silence,
and messages nobody reads. Each of these once worked against a plain ROUTER.
"""

import socket

import pytest

from beige import wire
from beige.keys import read_secret
from beige.messages import encode
from beige.messages.llm import PromptRequest, PromptResult
from beige.testing import RawPeer
from beige.testing.zmtp import Zmtp
from beige.wire import Header, decode_header, encode_header


@pytest.fixture
def bus(house):
    house.start("broker")
    return house


def raw(house, user, **options):
    peer = RawPeer(house.home.bus_endpoint, user, read_secret(house.home, user), **options)
    assert peer.admitted
    return peer


def works(house):
    with raw(house, "cli/1") as peer:
        peer.hello()
        peer.send(Header(type=wire.CALL, id=1, service="bus", method="stats"), b"\x80")
        return peer.receive()[0].type == wire.REPLY


@pytest.mark.parametrize("service", ["policy", "llm"])
def test_a_user_id_in_the_metadata_is_not_believed(bus, service):
    """The control is the peer's own service, which it may announce."""
    with Zmtp(bus.home.bus_socket) as peer:
        peer.handshake("llm/0", read_secret(bus.home, "llm/0"), User_Id=b"policy/0", Identity=b"x1")
        peer.send(encode_header(Header(type=wire.HELLO, service=service, credit=4)), b"")
        answer = decode_header(peer.receive()[0])
        assert answer.type == (wire.WELCOME if service == "llm" else wire.ERR)


def test_claiming_another_peers_routing_id_gets_none_of_its_messages(bus):
    with raw(bus, "llm/0", routing_id=b"s-known-to-the-thief") as victim:
        victim.hello("llm", 8)
        with RawPeer(
            bus.home.bus_endpoint, "llm/1", read_secret(bus.home, "llm/1"), routing_id=b"s-known-to-the-thief"
        ) as thief:
            thief.send(Header(type=wire.HELLO, service="llm", credit=8))
            with raw(bus, "cli/0") as caller:
                caller.hello()
                for number in range(1, 6):
                    call = Header(type=wire.CALL, id=number, service="llm", method="prompt", agent="travel")
                    caller.send(call, encode(PromptRequest(text="secret")))
                for _ in range(5):
                    asked, _ = victim.receive()
                    reply = PromptResult(session="", text="", stop_reason="end", model="m")
                    victim.send(Header(type=wire.REPLY, id=asked.id), encode(reply))
                    assert caller.receive()[0].type == wire.REPLY
            with pytest.raises(TimeoutError):
                thief.receive(wait_s=0.5)


def test_a_frame_over_the_limit_ends_its_senders_connection_and_nobody_elses(bus):
    with raw(bus, "llm/0") as peer, raw(bus, "cli/0") as honest:
        peer.hello()
        honest.hello()
        peer.send(Header(type=wire.HB), b"x" * (wire.MAX_FRAME + 1))
        honest.send(Header(type=wire.CALL, id=1, service="bus", method="stats"), b"\x80")
        assert honest.receive()[0].type == wire.REPLY
        with pytest.raises((TimeoutError, ValueError)):
            while True:  # what was sent before; then nothing
                peer.receive(wait_s=1.0)
    assert works(bus)


def test_a_connection_that_says_nothing_is_closed(bus):
    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect(str(bus.home.bus_socket))
        mute.settimeout(10)
        while mute.recv(256):
            pass  # the broker's greeting, then the end
    assert works(bus)


def test_a_worker_that_never_reads_is_dropped_and_its_callers_are_told(bus):
    """Its calls end, within bounded memory of the broker, and every one is accounted for."""
    body = encode(PromptRequest(text="x" * 100_000))
    with raw(bus, "llm/0") as stuck, raw(bus, "cli/0") as caller:
        stuck.socket.rcvhwm = 1
        stuck.hello("llm", 4096)
        caller.hello()
        sent = 400  # 40 MB
        for number in range(1, sent + 1):
            call = Header(
                type=wire.CALL, id=number, service="llm", method="prompt", agent="travel", ttl_ms=8000
            )
            caller.send(call, body)
        codes = [caller.receive(wait_s=15.0)[0].code for _ in range(sent)]
        assert set(codes) <= {"peer_lost", "unavailable", "overloaded", "deadline_exceeded"}
        assert len(codes) == sent
    assert works(bus)
