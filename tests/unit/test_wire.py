"""The envelope: version, limits, hostile bytes."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige import errors, wire
from beige.wire import Header, decode_header, encode_header

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_protocol_page_and_the_code_have_one_version():
    assert f"version {wire.VERSION}" in PROTOCOL.read_text().splitlines()[0]


def test_the_protocol_page_lists_every_message_type_and_error_code():
    text = PROTOCOL.read_text()
    for name in wire.TYPE_NAMES[1:]:
        assert re.search(rf"\b{name}\b", text), name
    for code in errors.BY_CODE:
        assert f"| {code} |" in text, code


def test_the_brokers_fields_come_after_the_senders():
    fields = Header.__struct_fields__
    assert fields[fields.index("outcome") + 1 :] == (
        *("src", "hop", "attempt", "epoch", "call", "parent_call", "verdict", "receipt"),
    )


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_raise_a_decode_error(data):
    try:
        decode_header(data)
    except wire.DECODE_ERRORS:
        pass


@pytest.mark.parametrize(
    "value",
    [
        [1] * 40,
        {"v": 1},
        [1, 3, -1],
        [1, 3, 2**63],
        [1, 3, 1, "x" * 65],
        [1, 3, 1, 7],
        [1, 3, 1, "s", "m", 0, "k" * 257],
        [1, "CALL"],
    ],
    ids=["too long", "a map", "negative", "too big", "long name", "wrong type", "long key", "type as text"],
)
def test_a_header_of_the_wrong_shape_is_refused(value):
    with pytest.raises(msgspec.MsgspecError):
        decode_header(msgspec.msgpack.encode(value))


def test_deep_nesting_is_refused_not_fatal():
    with pytest.raises(wire.DECODE_ERRORS):
        decode_header(b"\x91" * 100_000)


def test_the_largest_honest_header_fits():
    fields = {}
    for name in Header.__struct_fields__:
        kind = type(getattr(Header(), name))
        fields[name] = {str: "x" * 64, int: 1, bytes: b"x" * 1024}.get(kind)
    for name in (
        "key",
        "idem",
        "token",
        "agent",
        "session",
        "channel",
        "trace",
        "src",
        "call",
        "parent_call",
    ):
        fields[name] = "x" * 256
    fields["outcome"] = wire.Outcome(error="x" * 256)
    encoded = encode_header(Header(**fields))
    assert decode_header(encoded).trace == "x" * 256
    assert len(encoded) <= wire.MAX_HEADER


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_an_error_survives_the_wire(code):
    error = errors.from_wire(code, "why", "maybe")
    assert (error.code, str(error), error.executed) == (code, "why", "maybe")


def test_an_unknown_code_is_a_failure():
    assert isinstance(errors.from_wire("from_the_future", "x", "no"), errors.Failed)
