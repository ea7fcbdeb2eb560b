"""The decoder takes any bytes and answers with events or one Violation, never more memory than a frame."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.sandbox import frames
from services.sandbox.frames import (
    Decoder,
    Exited,
    Hello,
    JobError,
    Output,
    Pong,
    StdinCredit,
    Violation,
)


def raw(kind: int, job: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame as the wire page draws it, made without the code under test."""
    return struct.pack("<IBI", len(payload) + 5 if length is None else length, kind, job) + payload


EXIT_7 = struct.pack("<iBQQ", 7, 0, 10, 20)

GOOD = [
    pytest.param(raw(16, 1, b"out"), Output(1, "stdout", b"out"), id="stdout"),
    pytest.param(raw(17, 2, b"\xff\0"), Output(2, "stderr", b"\xff\0"), id="stderr"),
    pytest.param(raw(18, 3, EXIT_7), Exited(3, 7, False, False, 10, 20), id="exit"),
    pytest.param(
        raw(18, 3, struct.pack("<iBQQ", -9, 3, 0, 0)), Exited(3, -9, True, True, 0, 0), id="killed, timed out"
    ),
    pytest.param(raw(19, 4, struct.pack("<i", 2) + b"exec: no"), JobError(4, 2, "exec: no"), id="error"),
    pytest.param(raw(19, 4, struct.pack("<i", 2) + b"\xff"), JobError(4, 2, "\ufffd"), id="error, not UTF-8"),
    pytest.param(raw(20, 0, struct.pack("<II", 1, 1)), Hello(1, 1), id="hello"),
    pytest.param(raw(21, 9), Pong(9), id="pong"),
    pytest.param(raw(22, 5, struct.pack("<I", 77)), StdinCredit(5, 77), id="stdin credit"),
    pytest.param(raw(23, 6, b"end"), Output(6, "stdout", b"end", tail=True), id="stdout tail"),
    pytest.param(raw(24, 6, b""), Output(6, "stderr", b"", tail=True), id="empty stderr tail"),
]

BAD = [
    pytest.param(raw(16, 1, b"", length=4), id="length below the header's rest"),
    pytest.param(raw(16, 1, b"", length=0), id="length zero"),
    pytest.param(raw(16, 1, b"", length=262144 + 6), id="length over the limit"),
    pytest.param(raw(16, 1, b"", length=0xFFFFFFFF), id="length 4 GiB"),
    pytest.param(raw(16, 1), id="empty output"),
    pytest.param(raw(0, 1), id="type 0"),
    pytest.param(raw(1, 1, b"x"), id="a host's frame"),
    pytest.param(raw(25, 1), id="type 25"),
    pytest.param(raw(255, 1), id="type 255"),
    pytest.param(raw(18, 1, EXIT_7[:-1]), id="short exit"),
    pytest.param(raw(18, 1, EXIT_7 + b"x"), id="long exit"),
    pytest.param(raw(18, 1, struct.pack("<iBQQ", 0, 4, 0, 0)), id="unknown exit flag"),
    pytest.param(raw(18, 1, struct.pack("<iBQQ", 256, 0, 0, 0)), id="exit code 256"),
    pytest.param(raw(18, 1, struct.pack("<iBQQ", -65, 0, 0, 0)), id="signal 65"),
    pytest.param(raw(18, 1, struct.pack("<iBQQ", 0, 0, 2**61, 0)), id="absurd total"),
    pytest.param(raw(19, 1, b"abc"), id="error without errno"),
    pytest.param(raw(19, 1, bytes(4 + 4097)), id="error text too long"),
    pytest.param(raw(20, 0, b"1234567"), id="short hello"),
    pytest.param(raw(21, 0, b"x"), id="pong with payload"),
    pytest.param(raw(22, 0, b"123"), id="short credit"),
    pytest.param(raw(23, 0, bytes(16385)), id="tail too long"),
]


@pytest.mark.parametrize(("data", "event"), GOOD)
def test_every_frame_type_is_decoded(data: bytes, event: object) -> None:
    assert Decoder().feed(data) == [event]


@pytest.mark.parametrize("data", BAD)
def test_wrong_frames_are_violations(data: bytes) -> None:
    with pytest.raises(Violation):
        Decoder().feed(data)


def test_a_wild_length_is_refused_before_its_payload_arrives() -> None:
    with pytest.raises(Violation):
        Decoder().feed(raw(16, 1, b"", length=262150)[:9])


def test_the_largest_frame_is_taken() -> None:
    (event,) = Decoder().feed(raw(16, 1, bytes(262144)))
    assert isinstance(event, Output)
    assert len(event.data) == 262144


def test_frames_before_a_violation_in_the_same_bytes_do_not_leak_out() -> None:
    decoder = Decoder()
    with pytest.raises(Violation):
        decoder.feed(raw(16, 1, b"x") + raw(99, 1))


@given(st.lists(st.binary(max_size=64), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_bytes_end_in_events_or_a_violation(chunks: list[bytes]) -> None:
    decoder = Decoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except Violation:
        return
    assert decoder.held <= frames.MAX_PAYLOAD + 9


_valid = st.sampled_from([parameters.values for parameters in GOOD])


@given(st.lists(_valid, max_size=20), st.data())
@settings(max_examples=200, deadline=None)
def test_how_bytes_are_cut_does_not_matter(sent: list[tuple[bytes, object]], data: st.DataObject) -> None:
    stream = b"".join(wire for wire, _ in sent)
    decoder, events, position = Decoder(), [], 0
    while position < len(stream):
        size = data.draw(st.integers(1, 50))
        events += decoder.feed(stream[position : position + size])
        position += size
    assert events == [event for _, event in sent]
    assert decoder.held == 0


def test_run_is_encoded_as_the_page_draws_it() -> None:
    payload = frames.run_payload(
        [b"sh", b"-c", b"true"], {b"A": b"1", b"B": b"x=y"}, b"/workspace",
        timeout_ms=1500, has_stdin=True, limit_bytes=2**40, credit_bytes=65536,
    )  # fmt: skip
    expected = struct.pack("<IIQI", 1500, 1, 2**40, 65536) + b"/workspace\0"
    expected += struct.pack("<H", 3) + b"sh\0-c\0true\0" + struct.pack("<H", 2) + b"A=1\0B=x=y\0"
    assert payload == expected


@pytest.mark.parametrize(
    ("argv", "env", "cwd"),
    [
        pytest.param([b"a\0b"], {}, b"/", id="argument"),
        pytest.param([b"a"], {b"A": b"1\0B=2"}, b"/", id="variable"),
        pytest.param([b"a"], {}, b"/x\0y", id="directory"),
        pytest.param([], {}, b"/", id="nothing to run"),
    ],
)
def test_a_nul_cannot_move_the_borders_between_strings(
    argv: list[bytes], env: dict[bytes, bytes], cwd: bytes
) -> None:
    with pytest.raises(ValueError):
        frames.run_payload(argv, env, cwd, timeout_ms=1, has_stdin=False, limit_bytes=1, credit_bytes=1)


def test_oversized_host_frames_are_refused_here() -> None:
    with pytest.raises(ValueError):
        frames.frame(frames.STDIN, 1, bytes(262145))
