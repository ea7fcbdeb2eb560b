"""The ledger's file: what was acknowledged is read again, torn or foreign lines are told apart."""

import asyncio
import os
import random
import subprocess
import sys

import pytest

from beige.errors import ConfigError
from services.policy import ledger_file
from services.policy.budget import Account, Amount
from services.policy.ledger import Reserved, Settled
from services.policy.ledger_file import LedgerFile

DAY = "2026-03-05"
TOTAL = Account("total", "travel")


def reserved(lease, tokens=10, nano=20):
    return Reserved(lease, "travel", "s", "p", DAY, "prov", "m", tokens, nano)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


class opened:
    """A ledger's file, closed afterwards."""

    def __init__(self, path, rewrite_bytes=ledger_file.REWRITE_BYTES):
        self._file = LedgerFile(path, DAY, rewrite_bytes)

    def __enter__(self):
        return self._file

    def __exit__(self, *_):
        self._file.close()


def test_what_was_written_is_read_again(path):
    with opened(path) as file:
        for event in (reserved("a"), reserved("b", 5, 6), Settled("a", 3, 4)):
            file.append(event)
    assert path.stat().st_mode & 0o777 == 0o600
    for _ in range(2):  # as events, then as sums
        with opened(path) as file:
            ledger = file.ledger
            assert (ledger.used(TOTAL), ledger.reserved(TOTAL)) == (Amount(3, 4), Amount(5, 6))
            assert set(ledger.open) == {"b"}


@pytest.mark.parametrize("cut", [1, 5, 40, 60])
def test_a_torn_last_line_never_counted(path, cut, caplog):
    with opened(path) as file:
        file.append(reserved("a"))
        file.append(Settled("a", 3, 4))
        size = path.stat().st_size
        file.append(reserved("b"))
    os.truncate(path, size + cut)
    with opened(path) as file:
        assert file.ledger.used(TOTAL) == Amount(3, 4) and not file.ledger.open
        file.append(reserved("c"))
    assert "never counted" in caplog.text
    with opened(path) as file:
        assert set(file.ledger.open) == {"c"}


@pytest.mark.parametrize(
    "line", [b"{}", b'{"type":"settled"}', b'{"type":"settled","lease":"a","tokens":"1","nano":1}', b"\xff",
             b'{"type":"free"}', b"", b"[" * 5000],
)  # fmt: skip
def test_a_foreign_line_stops_policy_and_says_where(path, line):
    with opened(path) as file:
        file.append(reserved("a"))
    before = path.read_bytes()
    path.write_bytes(before + line + b"\n" + before)
    with pytest.raises(ConfigError, match="line 2 is not the ledger's"):
        LedgerFile(path, DAY)
    assert path.read_bytes() == before + line + b"\n" + before, "nothing is thrown away"


def test_a_second_process_is_kept_out(path):
    with opened(path), pytest.raises(ConfigError, match="another policy process"):
        LedgerFile(path, DAY)


REWRITE_BYTES = 20_000


def test_a_file_that_grows_is_written_anew_while_it_is_used(path, tmp_path):
    async def play():
        with opened(path, REWRITE_BYTES) as file:
            biggest = 0
            for number in range(2000):
                file.append(reserved(f"lease-{number}"))
                file.append(Settled(f"lease-{number}", 3, 4))
                if number % 200 == 0:
                    tending = asyncio.create_task(file.tend(DAY))
                    await asyncio.sleep(0)
                    file.append(reserved(f"meanwhile-{number}"))
                    await tending
                    biggest = max(biggest, path.stat().st_size)
            assert biggest < REWRITE_BYTES * 4 < 2000 * 200, "it was shortened"
            assert len(file.ledger.open) == 10 and file.ledger.used(TOTAL) == Amount(6000, 8000)

    asyncio.run(play())
    with opened(path) as file:
        assert len(file.ledger.open) == 10 and file.ledger.used(TOTAL) == Amount(6000, 8000)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ledger.jsonl", "ledger.lock"]


SPEND = f"""
import asyncio, sys
from pathlib import Path
from services.policy.ledger import Settled
from tests.unit.policy.test_ledger_file import opened, reserved

async def main(path, number):
    with opened(path, {REWRITE_BYTES}) as file:
        while True:
            number += 1
            file.append(reserved(f"lease-{{number}}"))
            file.append(Settled(f"lease-{{number}}", 1, 1))
            print(number, flush=True)
            if number % 20 == 0:
                await file.tend("{DAY}")

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


def test_kills_at_random_lose_no_settlement_and_count_none_twice(path):
    """Also in the middle of writing the file anew. Each settlement is a token and told after it is made."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, told = random.Random(seed), 0
    for _ in range(12):
        before = told
        arguments = [sys.executable, "-c", SPEND, str(path), str(told)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            until = before + chance.randrange(1, 600)
            told = next(int(line) for line in process.stdout if int(line) >= until)
            process.kill()
            told = max([told, *(int(line) for line in process.stdout if line.endswith("\n"))])
        with opened(path) as file:
            settled = file.ledger.used(TOTAL).tokens
            assert told <= settled <= told + 1, "at most the one it had no time to tell"
            for lease in list(file.ledger.open):
                file.append(Settled(lease, 0, 0))
        told = settled


FULL = """
import resource, signal, sys
from pathlib import Path
from beige.errors import Unavailable
from services.policy.ledger import Settled
from tests.unit.policy.test_ledger_file import TOTAL, opened, reserved

path, unlimited = Path(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with opened(path) as file:
    file.append(reserved("lost"))
    file.append(Settled("lost", 3, 4))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, unlimited[1]))
    try:
        for count in range(1000):
            file.append(reserved(f"lease-{count}"))
    except Unavailable as error:
        assert "can't be written" in str(error)
    assert len(file.ledger.open) == count
    assert path.read_bytes().endswith(b"\\n"), "nothing of the refused line is left"
resource.setrlimit(resource.RLIMIT_FSIZE, (100, unlimited[1]))
with opened(path) as file:
    assert len(file.ledger.open) == count, "it starts although it can't write the file anew"
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
with opened(path) as file:
    assert len(file.ledger.open) == count and file.ledger.used(TOTAL).tokens == 3
    file.append(reserved("more"))
print("kept", count)
"""


def test_a_full_disk_is_told_and_leaves_the_file_as_it_was(path):
    """In a process of its own, for which the kernel refuses to make a file larger than a limit."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("kept"), done.stderr
