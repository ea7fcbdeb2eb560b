"""Starts the policy process."""

from beige.process import run
from services.policy.service import main

if __name__ == "__main__":
    run("policy", main)
