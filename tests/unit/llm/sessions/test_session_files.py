"""Real files in a temporary directory; the lock against a real other process."""

import asyncio
import json
import stat
import subprocess
import sys

import pytest

from beige.errors import Failed, NotFound, Overloaded
from services.llm.conversation import Prompt, TurnEnd
from services.llm.sessions.files import Sessions


async def quiet(text):
    pass


def lines(root, agent="travel", session="s1"):
    return [json.loads(line) for line in (root / agent / f"{session}.jsonl").read_text().splitlines()]


def test_each_line_is_there_before_the_next_step(tmp_path):
    async def run():
        async with Sessions(tmp_path).open("travel", "s1", quiet) as session:
            session.append(Prompt(text="one"))
            assert [line["type"] for line in lines(tmp_path)] == ["session", "prompt"]
            await session.sync()
            session.append(TurnEnd(outcome="answered"))
            assert lines(tmp_path)[-1]["outcome"] == "answered"
            assert all(line["ts"].endswith("Z") for line in lines(tmp_path))

    asyncio.run(run())


def test_files_are_private(tmp_path):
    root = tmp_path / "sessions"

    async def run():
        async with Sessions(root).open("travel", "s1", quiet):
            pass

    asyncio.run(run())
    assert stat.S_IMODE((root / "travel" / "s1.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "travel").stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a_symlink_in_a_sessions_place_is_not_followed(tmp_path):
    """A local attacker who could create a file there must not make us append to another."""
    (tmp_path / "travel").mkdir(mode=0o700)
    (tmp_path / "travel" / "s1.jsonl").symlink_to(tmp_path / "target")

    async def run():
        async with Sessions(tmp_path).open("travel", "s1", quiet):
            pass

    with pytest.raises(OSError):
        asyncio.run(run())
    assert not (tmp_path / "target").exists()


def test_a_session_is_resumed_by_its_id(tmp_path):
    async def run():
        for text in ("one", "two"):
            async with Sessions(tmp_path).open("travel", "s1", quiet) as session:
                session.append(Prompt(text=text))
                session.append(TurnEnd(outcome="answered"))
        async with Sessions(tmp_path).open("travel", "s1", quiet) as session:
            return session.entries

    entries = asyncio.run(run())
    assert [entry.text for entry in entries if isinstance(entry, Prompt)] == ["one", "two"]


def test_a_torn_line_and_an_unfinished_turn_are_repaired_on_disk(tmp_path):
    async def run():
        async with Sessions(tmp_path).open("travel", "s1", quiet) as session:
            session.append(Prompt(text="one"))
        with (tmp_path / "travel" / "s1.jsonl").open("ab") as file:
            file.write(b'{"type":"assistant","mod')
        async with Sessions(tmp_path).open("travel", "s1", quiet) as session:
            assert [type(entry).__name__ for entry in session.repaired] == ["Notice", "TurnEnd"]
        async with Sessions(tmp_path).open("travel", "s1", quiet) as session:
            assert session.repaired == []

    asyncio.run(run())
    assert [line["type"] for line in lines(tmp_path)] == ["session", "prompt", "notice", "turn_end"]
    assert lines(tmp_path)[-1]["outcome"] == "interrupted"


def test_prompts_to_one_session_are_served_in_order_and_alone(tmp_path):
    order, told = [], []

    async def waiting(text):
        told.append(text)

    async def one(sessions, number):
        async with sessions.open("travel", "s1", waiting) as session:
            session.append(Prompt(text=str(number)))
            for _ in range(3):
                await asyncio.sleep(0)
            order.append(number)
            session.append(TurnEnd(outcome="answered"))

    async def run():
        sessions = Sessions(tmp_path)
        await asyncio.gather(*[one(sessions, number) for number in range(10)])
        assert sessions._lines == {}

    asyncio.run(run())
    assert order == list(range(10))
    types = [line["type"] for line in lines(tmp_path)]
    assert types == ["session"] + ["prompt", "turn_end"] * 10
    assert len(told) == 9 and "busy with 1 earlier" in told[0]


def test_a_caller_who_takes_no_notice_loses_no_place_in_the_line(tmp_path):
    order = []

    async def one(sessions, number, waiting):
        async with sessions.open("travel", "s1", waiting):
            order.append(number)

    async def run():
        sessions, taken = Sessions(tmp_path), asyncio.Event()

        async def slow(text):
            await taken.wait()

        async with sessions.open("travel", "s1", quiet):
            tasks = [asyncio.create_task(one(sessions, n, slow if n == 1 else quiet)) for n in (1, 2)]
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        taken.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert order == [1, 2]


def test_a_session_is_removed_only_while_nobody_uses_it(tmp_path):
    async def run():
        sessions, other = Sessions(tmp_path), Sessions(tmp_path)
        with pytest.raises(NotFound, match="s1"):
            await sessions.remove("travel", "s1")
        async with sessions.open("travel", "s1", quiet):
            for held in (sessions, other):
                with pytest.raises(Overloaded, match="busy"):
                    await held.remove("travel", "s1")
        await other.remove("travel", "s1")
        assert list((tmp_path / "travel").iterdir()) == []

    asyncio.run(run())


def test_who_waited_for_a_session_that_was_removed_writes_to_a_file_that_is_there(tmp_path):
    async def run():
        waits = asyncio.Event()

        async def waiting(text):
            waits.set()

        async def wait():
            async with Sessions(tmp_path).open("travel", "s1", waiting) as session:
                session.append(Prompt(text="after"))

        async with Sessions(tmp_path).open("travel", "s1", quiet):
            task = asyncio.create_task(wait())
            await waits.wait()
            (tmp_path / "travel" / "s1.jsonl").unlink()
        await task

    asyncio.run(run())
    assert [line["type"] for line in lines(tmp_path)] == ["session", "prompt"]


def test_other_sessions_do_not_wait(tmp_path):
    async def run():
        sessions = Sessions(tmp_path)
        async with sessions.open("travel", "s1", quiet), sessions.open("travel", "s2", quiet):
            async with sessions.open("other", "s1", quiet):
                pass

    asyncio.run(run())


def test_a_cancelled_waiter_leaves_the_line(tmp_path):
    async def run():
        sessions = Sessions(tmp_path)
        told = asyncio.Event()

        async def waiting(text):
            told.set()

        async def wait():
            async with sessions.open("travel", "s1", waiting):
                raise AssertionError("never its turn")

        async with sessions.open("travel", "s1", quiet):
            task = asyncio.create_task(wait())
            await told.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with sessions.open("travel", "s1", quiet):
            pass
        assert sessions._lines == {}

    asyncio.run(run())


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_another_process_holding_the_session_is_waited_for_and_its_death_frees_it(tmp_path):
    (tmp_path / "travel").mkdir(mode=0o700)
    path = tmp_path / "travel" / "s1.jsonl"
    command = [sys.executable, "-c", HOLDER, str(path)]

    async def run(process):
        async def waiting(text):
            assert "another llm process" in text
            process.kill()  # what the kernel does with its lock is what is tested

        async with Sessions(tmp_path).open("travel", "s1", waiting) as session:
            session.append(Prompt(text="mine"))

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        asyncio.run(run(process))
    assert process.returncode == -9
    assert lines(tmp_path)[-1]["text"] == "mine"


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from beige.errors import Failed
from services.llm.conversation import Prompt
from services.llm.sessions.files import Sessions

async def quiet(text): pass

async def main():
    async with Sessions(Path(sys.argv[1])).open("travel", "s1", quiet) as session:
        session.append(Prompt(text="before"))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        try:
            session.append(Prompt(text="x" * 100_000))
        except Failed as error:
            print(error)
        session.append(Prompt(text="after"))

asyncio.run(main())
"""


def test_a_line_that_does_not_fit_on_the_disk_is_taken_back(tmp_path):
    """The kernel's file size limit stands for a full disk: both write a part and then fail."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "can't be written" in done.stdout
    assert [line.get("text") for line in lines(tmp_path)] == [None, "before", "after"]


def test_damage_in_the_middle_is_an_error_and_changes_nothing(tmp_path):
    (tmp_path / "travel").mkdir(mode=0o700)
    path = tmp_path / "travel" / "s1.jsonl"
    data = b'{"type":"session","v":1,"id":"s1","agent":"travel"}\nbad\n{"type":"prompt","text":"x"}\n'
    path.write_bytes(data)

    async def run():
        async with Sessions(tmp_path).open("travel", "s1", quiet):
            pass

    with pytest.raises(Failed, match="line 2"):
        asyncio.run(run())
    assert path.read_bytes() == data
