"""Real processes for tests and benchmarks: a throw-away home and the processes started in it."""

from beige.testing.house import House, short_home

__all__ = ["House", "short_home"]
