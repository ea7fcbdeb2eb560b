"""`python -m services.tools`."""

from __future__ import annotations

from beige.process import run
from services.tools.service import main

if __name__ == "__main__":
    run("tools", main)
