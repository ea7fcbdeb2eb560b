"""Starts the audit process."""

from beige.process import run
from services.audit.service import main

if __name__ == "__main__":
    run("audit", main)
