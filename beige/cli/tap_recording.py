"""Recordings of the tap: a MessagePack stream, a preamble and then one map per event.

A recording is a file somebody may have sent: it is read with limits, and a torn end is where it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgpack
import msgspec

from beige import tapevent
from beige.errors import Malformed
from beige.tapevent import TapEvent

KIND = "beige-tap"
VERSION = 1
MAX_OBJECT = 256 * 1024
_CHUNK = 64 * 1024


class Recorder:
    """Writes a new recording, 0600. FileExistsError rather than overwriting one."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "wb")
        self.events = 0
        self._file.write(msgspec.msgpack.encode({"kind": KIND, "version": VERSION, "created": time.time()}))

    def write(self, event: TapEvent) -> None:
        self._file.write(tapevent.encode(event))
        self.events += 1

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def replay(path: Path) -> Iterator[TapEvent]:
    """The events of a recording. Malformed if it is none, or breaks its limits or shape."""
    with path.open("rb") as file:
        objects = _objects(file)
        preamble = next(objects, None)
        if not isinstance(preamble, dict) or preamble.get("kind") != KIND:
            raise Malformed(f"{path.name} is not a recording of beige tap")
        if preamble.get("version") != VERSION:
            raise Malformed(
                f"{path.name} has version {preamble.get('version')!r}; this beige reads {VERSION}"
            )
        for number, item in enumerate(objects, 1):
            try:
                yield msgspec.convert(item, TapEvent)
            except msgspec.ValidationError as error:
                raise Malformed(f"{path.name}: event {number}: {error}") from None


def _objects(file: BinaryIO) -> Iterator[object]:
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=True, max_buffer_size=MAX_OBJECT, max_str_len=MAX_OBJECT,
        max_bin_len=MAX_OBJECT, max_array_len=1024, max_map_len=1024, max_ext_len=0,
    )  # fmt: skip
    try:
        while chunk := file.read(_CHUNK):
            unpacker.feed(chunk)
            yield from unpacker
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise Malformed(f"the recording can't be read: {type(error).__name__}") from None
