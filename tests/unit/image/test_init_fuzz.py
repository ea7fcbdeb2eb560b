"""Whatever the host sends, the executor survives, and dials again when it has hung up."""

import struct

import pytest
from executor_host import CREDIT, KILL, PING, PONG, RESET, RUN, SIGNAL, STDIN, run_payload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# A command that is never found, so that damage to the frame cannot make it another one that is.
HARMLESS = run_payload("no-such-command", "x", env={"PATH": "/nowhere"}, stdin=True, limit=10, credit=5)

frames = st.builds(
    lambda kind, job, payload: struct.pack("<IBI", 5 + len(payload), kind, job) + payload,
    kind=st.sampled_from([STDIN, KILL, RESET, PING, CREDIT, SIGNAL, 0, 8, 16, 255]),
    job=st.integers(0, 3),
    payload=st.one_of(st.binary(max_size=12), st.just(struct.pack("<I", 9))),
)
runs = st.builds(
    lambda job: struct.pack("<IBI", 5 + len(HARMLESS), RUN, job) + HARMLESS, job=st.integers(0, 3)
)


@st.composite
def damaged_runs(draw):
    payload = bytearray(HARMLESS)
    for at in draw(st.lists(st.integers(0, len(payload) - 1), max_size=4)):
        payload[at] = draw(st.sampled_from([0, 1, 0x7F, 0xFF]))
    size = draw(st.integers(0, len(payload)))
    length = draw(st.sampled_from([5 + size, 5 + size, 5 + size, size]))
    return struct.pack("<IBI", length, RUN, draw(st.integers(0, 3))) + bytes(payload[:size])


streams = st.lists(st.one_of(frames, frames, runs, damaged_runs(), st.binary(max_size=20)), max_size=12)


@pytest.mark.parametrize("box", ["sanitized", "pid1"], indirect=True)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=streams)
def test_any_stream_of_bytes_is_survived(box, parts):
    try:
        for part in parts:
            box.send_bytes(part)
        answered = answers_ping(box)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        answered = False
    if not answered:
        box.accept()
        assert answers_ping(box)
    assert box.process.poll() is None


def answers_ping(box):
    """False: it still waits for the rest of a frame, rightly. EOFError: it has hung up, rightly."""
    box.send(PING, 0xABCDEF)
    box._connection.settimeout(0.2)
    try:
        while box.frame()[:2] != (PONG, 0xABCDEF):
            pass
        return True
    except TimeoutError:
        return False
    finally:
        if box._connection:
            box._connection.settimeout(20)
