"""`python -m services.egress`."""

from __future__ import annotations

from beige.process import run
from services.egress.service import main

if __name__ == "__main__":
    run("egress", main)
