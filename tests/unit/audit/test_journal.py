"""The journal: whole lines, acknowledged only when kept; rotation, a full disk, a second writer."""

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from beige import auditlog
from beige.errors import ConfigError
from services.audit.journal import Journal

BIG = 1 << 30
SYNC = pytest.mark.parametrize("sync", ["written", "disk"])


def in_journal(path, work, *, max_bytes=BIG, sync="written"):
    async def body():
        journal = Journal(path, max_bytes=max_bytes, sync=sync)
        try:
            return await work(journal)
        finally:
            await journal.close()

    return asyncio.run(body())


async def keep(journal, lines):
    """All of `lines`, appended in one turn of the loop."""
    await asyncio.gather(*filter(None, [journal.append(line) for line in lines]))


def lines(count, start=0):
    return [b"%06d %s\n" % (n, b"x" * (n % 97)) for n in range(start, start + count)]


def content(directory):
    """Everything the log holds, over its rotated files."""
    return b"".join(p.read_bytes() for p in auditlog.files(directory / "audit.jsonl"))


@SYNC
def test_lines_are_kept_in_order_when_acknowledged(tmp_path, sync):
    path = tmp_path / "audit.jsonl"

    async def work(journal):
        await keep(journal, lines(50))
        assert path.read_bytes() == b"".join(lines(50))
        await keep(journal, lines(50, 50))

    in_journal(path, work, sync=sync)
    assert path.read_bytes() == b"".join(lines(100))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_only_to_be_written_is_written_at_once(tmp_path):
    path = tmp_path / "audit.jsonl"

    async def work(journal):
        assert journal.append(b"now\n") is None
        assert path.read_bytes() == b"now\n"

    in_journal(path, work)


def test_one_turn_is_one_commit_to_disk(tmp_path):
    """strace would show it; the file's growth does too: no size in between is ever visible."""
    path = tmp_path / "audit.jsonl"

    async def work(journal):
        futures = [journal.append(line) for line in lines(10)]
        assert path.stat().st_size == 0
        await futures[0]
        assert path.read_bytes() == b"".join(lines(10))
        assert all(future.done() for future in futures)

    in_journal(path, work, sync="disk")


def test_a_cancelled_waiter_takes_nothing_back(tmp_path):
    path = tmp_path / "audit.jsonl"

    async def work(journal):
        first, second = journal.append(b"first\n"), journal.append(b"second\n")
        first.cancel()
        await second

    in_journal(path, work, sync="disk")
    assert path.read_bytes() == b"first\nsecond\n"


@SYNC
def test_rotation_loses_nothing_and_overwrites_nothing(tmp_path, sync):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"before\n")

    async def work(journal):
        for n in range(0, 400, 4):
            await keep(journal, lines(4, n))

    in_journal(path, work, max_bytes=1000, sync=sync)
    assert content(tmp_path) == b"before\n" + b"".join(lines(400))
    rotated = auditlog.files(path)[:-1]
    assert len(rotated) > 10
    assert all(p.stat().st_size <= 1000 and stat.S_IMODE(p.stat().st_mode) == 0o600 for p in rotated)


def test_a_log_that_cannot_be_rotated_grows_on(tmp_path):
    """The directory is read-only for a process without root's powers."""
    script = """
import asyncio, os, sys
from pathlib import Path
from services.audit.journal import Journal
async def main():
    path = Path(sys.argv[1])
    journal = Journal(path, max_bytes=100)
    journal.append(b"a" * 90 + b"\\n")
    os.chmod(path.parent, 0o500)
    if os.getuid() == 0:
        os.chown(path.parent, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    journal.append(b"b" * 90 + b"\\n")
    await journal.close()
asyncio.run(main())
"""
    home = tmp_path / "logs"
    home.mkdir()
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.getuid() and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    run = subprocess.run(
        [sys.executable, "-c", script, str(home / "audit.jsonl")], cwd=Path(__file__).parents[3], check=False
    )
    home.chmod(0o700)
    assert run.returncode == 0
    assert [p.name for p in home.glob("audit*.jsonl")] == ["audit.jsonl"]
    assert (home / "audit.jsonl").read_bytes() == b"a" * 90 + b"\n" + b"b" * 90 + b"\n"


def test_a_torn_last_line_is_moved_aside(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"whole\n" + b'{"torn' * 50_000)

    async def work(journal):
        journal.append(b"next\n")

    in_journal(path, work)
    assert path.read_bytes() == b"whole\nnext\n"
    (aside,) = tmp_path.glob("audit.torn-*")
    assert aside.read_bytes() == b'{"torn' * 50_000
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600


def test_a_second_writer_is_refused_also_after_rotation(tmp_path):
    path = tmp_path / "audit.jsonl"

    async def work(journal):
        for line in lines(50):
            journal.append(line)
        with pytest.raises(ConfigError, match="another process"):
            Journal(path, max_bytes=200)

    in_journal(path, work, max_bytes=200)
    in_journal(path, lambda journal: asyncio.sleep(0))


def test_a_symlink_is_not_followed(tmp_path):
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Journal(tmp_path / "audit.jsonl", max_bytes=BIG)


def test_a_log_moved_away_by_hand_is_begun_anew(tmp_path):
    path = tmp_path / "audit.jsonl"

    async def work(journal):
        journal.append(b"one\n")
        path.rename(tmp_path / "taken")
        await journal.sync()
        journal.append(b"two\n")

    in_journal(path, work)
    assert (tmp_path / "taken").read_bytes() == b"one\n"
    assert path.read_bytes() == b"two\n"


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from services.audit.journal import Journal

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def begin(journal, line):
    try:
        return journal.append(line)
    except OSError as error:
        return error

async def attempt(journal, lines):
    begun = [begin(journal, line) for line in lines]
    await asyncio.wait([r for r in begun if asyncio.isfuture(r)] or [asyncio.ensure_future(asyncio.sleep(0))])
    ends = [r.exception() if asyncio.isfuture(r) else r for r in begun]
    return [type(end).__name__ if end else "ok" for end in ends]

async def main():
    journal = Journal(Path(sys.argv[1]), max_bytes=1 << 30, sync=sys.argv[2])
    print(await attempt(journal, [b"a" * 99 + b"\\n"]))
    limit(250)
    print(await attempt(journal, [b"b" * 99 + b"\\n", b"c" * 99 + b"\\n"]))
    print(await attempt(journal, [b"d" * 99 + b"\\n"]))
    limit(resource.RLIM_INFINITY)
    print(await attempt(journal, [b"e" * 99 + b"\\n"]))
    await journal.close()

asyncio.run(main())
"""


FULL_DISK_ENDS = {
    "written": (["['ok']", "['ok', 'OSError']", "['OSError']", "['ok']"], b"abe"),
    "disk": (["['ok']", "['OSError', 'OSError']", "['ok']", "['ok']"], b"ade"),  # a group fails whole
}


@SYNC
def test_a_full_disk_fails_what_does_not_fit_and_the_journal_recovers(tmp_path, sync):
    path = tmp_path / "audit.jsonl"
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), sync],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    ends, kept = FULL_DISK_ENDS[sync]
    assert run.stdout.splitlines() == ends
    assert path.read_bytes() == b"".join(bytes([c]) * 99 + b"\n" for c in kept)
