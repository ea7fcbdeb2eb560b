"""Starts llm processes in a tenth of a second: everything is imported once, each process is a fork of that.

A process is `services.llm` as always, only its imports are done; for tests that kill it a hundred times.
`start INSTANCE` and `kill PID` on standard input; `pid N` (and the process's own READY) and `killed N` on
standard output.
"""

import os
import signal
import sys

import services.llm.providers.anthropic_messages  # noqa: F401 - imported for the forks
from beige.process import run
from services.llm.service import main


def start(instance):
    if pid := os.fork():
        return pid
    os.environ["BEIGE_INSTANCE"] = instance
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    run("llm", main)
    raise AssertionError("run ends the process")


if __name__ == "__main__":
    alive = set()
    for line in sys.stdin:
        what, name = line.split()
        if what == "start":
            alive.add(started := start(name))
            print(f"pid {started}", flush=True)
        else:
            os.kill(int(name), signal.SIGKILL)
            os.waitpid(int(name), 0)
            alive.discard(int(name))
            print(f"killed {name}", flush=True)
    for pid in alive:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
