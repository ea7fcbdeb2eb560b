"""Starts the gateway process."""

from beige.process import run
from services.gateway.service import main

if __name__ == "__main__":
    run("gateway", main)
