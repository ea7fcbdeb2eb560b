"""`python -m services.channels`."""

from __future__ import annotations

from beige.process import run
from services.channels.service import main

if __name__ == "__main__":
    run("channels", main)
