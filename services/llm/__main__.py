"""Runs the llm process."""

from beige.process import run
from services.llm.service import main

if __name__ == "__main__":
    run("llm", main)
