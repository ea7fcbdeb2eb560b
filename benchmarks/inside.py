"""Runs inside the container: times a tool call (launcher to answer) beside a bare spawn, alternately.

python3 - < inside.py    prints [[tool_ms, spawn_ms], ...], medians per round
"""

import json
import os
import time
from statistics import median

ROUNDS, EACH = 9, 20
TOOL = ["/tools/bin/kv", "get", "bench"]
SPAWN = ["/bin/true"]


def timed_ms(argv: list[str]) -> float:
    began = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, NOWHERE, 1)])
    _, status = os.waitpid(pid, 0)
    spent = (time.perf_counter() - began) * 1000
    if status:
        raise SystemExit(f"{argv} ended with status {status}")
    return spent


NOWHERE = os.open(os.devnull, os.O_WRONLY)
rounds = []
for number in range(ROUNDS + 1):
    pairs = [(timed_ms(TOOL), timed_ms(SPAWN)) for _ in range(EACH)]
    if number:
        rounds.append([median(column) for column in zip(*pairs, strict=True)])
print(json.dumps(rounds))
