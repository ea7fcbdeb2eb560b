"""Real processes for tests and benchmarks: a throw-away home and the processes started in it."""

from beige.testing.house import House, short_home
from beige.testing.raw import RawPeer

__all__ = ["House", "RawPeer", "short_home"]
