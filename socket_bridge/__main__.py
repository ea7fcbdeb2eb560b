"""`python -m socket_bridge`."""

from __future__ import annotations

from beige.process import run
from socket_bridge.service import main

if __name__ == "__main__":
    run("bridge", main)
