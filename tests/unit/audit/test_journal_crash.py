"""kill -9 at any moment: every acknowledged line is there, whole, once and in order."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beige import auditlog
from services.audit.journal import Journal

WRITER = """
import asyncio, os, sys
from pathlib import Path
from services.audit.journal import Journal

async def main():
    journal = Journal(Path(sys.argv[1]), max_bytes=200_000, sync=sys.argv[2])
    life = sys.argv[3]
    async def one(worker):
        n = 0
        while True:
            fill = b"x" * (n * 37 % 3000)
            line = b'{"life":%s,"worker":%d,"n":%d,"fill":"%s"}\\n' % (life.encode(), worker, n, fill)
            if (kept := journal.append(line)) is not None:
                await kept
            else:
                await asyncio.sleep(0)
            os.write(1, line)
            n += 1
    await asyncio.gather(*(one(w) for w in range(16)))

asyncio.run(main())
"""


def write_until_killed(path, sync, life, acknowledged_bytes):
    """Acknowledged lines of one writer's life, as far as its pipe told us."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), sync, str(life)],
        cwd=Path(__file__).parents[3], stdout=subprocess.PIPE,
    )  # fmt: skip
    told = b""
    with child:
        while len(told) < acknowledged_bytes:
            block = os.read(child.stdout.fileno(), 65536)
            assert block, "the writer ended by itself"
            told += block
        child.send_signal(signal.SIGKILL)
        told += child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    return [json.loads(line) for line in told.splitlines(keepends=True) if line.endswith(b"\n")]


@pytest.mark.parametrize("sync", ["written", "disk"])
def test_no_acknowledged_line_is_lost_or_torn_by_kill_9(tmp_path, sync):
    path = tmp_path / "audit.jsonl"
    chance = random.Random(f"{sync}-5")
    lives = 8
    acknowledged = []
    for life in range(lives):
        acknowledged += write_until_killed(path, sync, life, chance.randrange(1, 400_000))
    asyncio.run(reopen(path))
    written = [json.loads(line) for file in auditlog.files(path) for line in auditlog.lines(file)]
    assert sum(p.stat().st_size for p in auditlog.files(path)) == sum(
        len(line) + 1 for file in auditlog.files(path) for line in auditlog.lines(file)
    )
    seen = {(w["life"], w["worker"], w["n"]) for w in written}
    assert len(seen) == len(written)
    assert {(a["life"], a["worker"], a["n"]) for a in acknowledged} <= seen
    for life in range(lives):
        for worker in range(16):
            numbers = [w["n"] for w in written if (w["life"], w["worker"]) == (life, worker)]
            assert numbers == list(range(len(numbers)))
    assert len(auditlog.files(path)) > 2


async def reopen(path):
    journal = Journal(path, max_bytes=200_000)
    await journal.close()
