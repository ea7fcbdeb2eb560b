"""Sizes in Docker's notation, and whether a container's memory can hold its files in memory."""

from __future__ import annotations

SHM_BYTES = 16 * 1024 * 1024
"""Size of /dev/shm in every container."""
LEAST_WORKSPACE = 8 * 1024 * 1024
"""A smaller file system would be metadata for the most part."""
LEAST_TRANSFER = 64 * 1024
"""Less would cut connections off within their TLS handshake."""
_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def size_bytes(text: str) -> int:
    """`512m` in bytes. ValueError if it is not a size."""
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)


def files_fit(memory: str, tmp_size: str, home_size: str) -> bool:
    """Files in memory that fill all of it leave no room for any command, not even `rm`: they may be at
    most half of it."""
    return size_bytes(tmp_size) + size_bytes(home_size) + SHM_BYTES <= size_bytes(memory) // 2
