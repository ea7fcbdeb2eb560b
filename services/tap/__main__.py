"""Starts the tap process."""

from beige.process import run
from services.tap.service import main

if __name__ == "__main__":
    run("tap", main)
