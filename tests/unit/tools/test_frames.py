"""Frames between host and plugin: any chunking, and no bytes that raise anything but Malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import Malformed
from beige.pluginhost.frames import MAX_FROM_PLUGIN, Close, Frame, Log, NotLoaded, encode
from services.tools import frames

SENT: list[frames.FromPlugin] = [
    frames.Loaded({"kv": 30.0}),
    frames.Done(1, "output é", "", 0),
    frames.Answered(2, "replaced", "text"),
    Log(20, "line"),
    frames.CancelSeen(2),
    frames.Stuck(3),
    NotLoaded("because"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_frames_survive_any_chunking(size: int) -> None:
    stream = b"".join(encode(frame) for frame in SENT)
    reader = frames.host_reader()
    found = [f for i in range(0, len(stream), size) for f in reader.feed(stream[i : i + size])]
    assert found == SENT


@given(st.binary(max_size=100))
def test_garbage_is_malformed(data: bytes) -> None:
    try:
        found = frames.host_reader().feed(len(data).to_bytes(4, "big") + data)
    except Malformed:
        return
    assert all(isinstance(frame, Frame) for frame in found)


def test_a_long_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(Malformed, match="over the limit"):
        frames.host_reader().feed((MAX_FROM_PLUGIN + 1).to_bytes(4, "big"))


@pytest.mark.parametrize("frame", [frames.Call(1, "t", [], "a", "", "", ""), Close()])
def test_a_plugin_cannot_send_the_hosts_frames(frame: frames.ToPlugin) -> None:
    with pytest.raises(Malformed):
        frames.host_reader().feed(encode(frame))


@pytest.mark.parametrize("code", [-1, 256, 2**40])
def test_an_exit_code_is_a_byte(code: int) -> None:
    with pytest.raises(Malformed, match="unreadable frame: Expected `int`"):
        frames.host_reader().feed(encode(frames.Done(1, "", "", code)))
