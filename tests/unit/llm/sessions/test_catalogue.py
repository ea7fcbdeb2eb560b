"""What is told of sessions: real files, whole, torn, damaged, growing and under way."""

import asyncio
import fcntl
import json
import os

import pytest

from beige.errors import Failed, Malformed, NotFound
from services.llm.conversation import Assistant, Header, Prompt, Text, TurnEnd
from services.llm.sessions.catalogue import Catalogue
from services.llm.sessions.journal import encode_line, read_journal

AT = "2026-11-29T16:15:00.000Z"


def turn(text, answer="ok", outcome="answered"):
    usage = {"input_tokens": 10, "output_tokens": 2}
    return [
        Prompt(text=text, ts=AT),
        Assistant(model="p/m", content=[Text(answer)], stop_reason="end_turn", usage=usage, ts=AT),
        TurnEnd(outcome=outcome, ts=AT),
    ]


def written(*entries):
    return b"".join(encode_line(entry) for entry in entries)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "travel").mkdir(mode=0o700)

    def put(session, *entries, tail=b""):
        path = tmp_path / "travel" / f"{session}.jsonl"
        path.write_bytes(written(Header(v=1, id=session, agent="travel", ts=AT), *entries) + tail)
        return path

    return put


def of(tmp_path, session, catalogue=None):
    return asyncio.run((catalogue or Catalogue(tmp_path)).info("travel", session))


def latest(tmp_path, limit=100):
    return asyncio.run(Catalogue(tmp_path).latest("travel", limit))


def test_a_session_is_summed_up(tmp_path, place):
    place("s1", *turn("Find\n  a hotel " + "x" * 100), *turn("and a flight", outcome="cancelled"))
    info = of(tmp_path, "s1")
    assert (info.prompts, info.entries, info.model, info.outcome) == (2, 7, "p/m", "cancelled")
    assert info.title.startswith("Find a hotel xxx") and len(info.title) == 80
    assert (info.usage, info.context_tokens) == ({"input_tokens": 20, "output_tokens": 4}, 12)
    assert (info.created, info.updated, info.problem) == (AT, AT, "")


def test_what_is_appended_is_found_and_a_torn_end_is_no_damage(tmp_path, place):
    path, catalogue = place("s1", *turn("one")), Catalogue(tmp_path)

    async def run():
        first = await catalogue.info("travel", "s1")
        with path.open("ab") as file:
            file.write(written(*turn("two")) + b'{"type":"prompt","te')
        second = await catalogue.info("travel", "s1")
        os.truncate(path, path.stat().st_size - 20)
        with path.open("ab") as file:
            file.write(written(Prompt(text="three")))
        third = await catalogue.info("travel", "s1")
        return [(info.prompts, info.outcome) for info in (first, second, third)]

    assert asyncio.run(run()) == [(1, "answered"), (2, "answered"), (3, "interrupted")]


def test_a_turn_without_an_end_is_running_while_somebody_holds_the_session(tmp_path, place):
    path = place("s1", Prompt(text="x"))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert of(tmp_path, "s1").outcome == "running"
    assert of(tmp_path, "s1").outcome == "interrupted"


def test_a_damaged_session_says_so_in_the_list_and_harms_no_other(tmp_path, place):
    place("middle", Prompt(text="x"), tail=b"rubbish\n" + written(TurnEnd(outcome="answered")))
    place("good", *turn("one"))
    place("empty").write_bytes(b"")
    place("foreign").write_bytes(written(Header(v=1, id="other", agent="travel"), *turn("x")))
    place("newer").write_bytes(written(Header(v=2, id="newer", agent="travel")))
    place("binary").write_bytes(b"\xff\x00\n" * 10)
    os.mkfifo(tmp_path / "travel" / "pipe.jsonl")
    (tmp_path / "travel" / "link.jsonl").symlink_to("/etc/passwd")
    (tmp_path / "travel" / ".fork-1").write_bytes(b"left behind")
    infos, total = latest(tmp_path)
    problems = {info.session: info.problem for info in infos if info.outcome == "damaged"}
    assert total == len(infos) == 8
    assert problems == {
        "middle": "line 3 of its file is not readable",
        "foreign": "its file is not that of this session",
        "newer": "its file has format 2, newer than 1",
        "binary": "its file is not readable",
        "pipe": "its file is not a file",
        "link": "its file can't be read: Too many levels of symbolic links",
    }


def test_a_mended_file_is_damaged_no_more(tmp_path, place):
    path, catalogue = place("s1", tail=b"rubbish\n" + written(*turn("x"))), Catalogue(tmp_path)

    async def run():
        before = await catalogue.info("travel", "s1")
        path.write_bytes(path.read_bytes().replace(b"rubbish\n", b""))
        return before.outcome, (await catalogue.info("travel", "s1")).outcome

    assert asyncio.run(run()) == ("damaged", "answered")


def test_the_last_used_come_first_and_only_those_asked_for_are_read(tmp_path, place):
    for n in range(1000):
        os.utime(place(f"s{n}", *turn(f"p{n}")), (n, n))
    place("s3").write_bytes(b"never opened: an old one")
    os.utime(tmp_path / "travel" / "s3.jsonl", (3, 3))
    infos, total = latest(tmp_path, 10)
    assert [info.session for info in infos] == [f"s{n}" for n in range(999, 989, -1)] and total == 1000

    async def all_twice():
        catalogue = Catalogue(tmp_path)
        await catalogue.latest("travel", 1000)
        before = _bytes_read()
        infos, _ = await catalogue.latest("travel", 1000)
        return len(infos), _bytes_read() - before

    listed, read = asyncio.run(all_twice())
    assert listed == 1000
    assert read < 10_000, "unchanged files are not read again"  # the test runner may read a message meanwhile


def _bytes_read():
    """The kernel's count of what this process read; reading it counts too, and is taken off."""
    with open("/proc/self/io", "rb", buffering=0) as file:
        data = file.read(4096)
    _bytes_read.own = getattr(_bytes_read, "own", 0) + len(data)
    return int(data.split()[1]) - (_bytes_read.own - len(data))


def test_no_session_and_no_agent_directory(tmp_path):
    assert latest(tmp_path) == ([], 0)
    with pytest.raises(NotFound, match="'s1'"):
        of(tmp_path, "s1")
    with pytest.raises(Malformed):
        of(tmp_path, "../x")
    with pytest.raises(Malformed):
        of(tmp_path, "")


async def _history(tmp_path, after):
    sent = []

    async def send(piece):
        sent.append(piece)

    info = await Catalogue(tmp_path).history("travel", "s1", after, send)
    return info.entries, b"".join(sent), max(map(len, sent), default=0)


def test_history_is_the_file_in_pieces_from_any_entry_on(tmp_path, place):
    entries = [*turn("x" * 300_000), *turn("two")]
    whole = place("s1", *entries, tail=b'{"type":"pro').read_bytes()
    for after in range(9):
        lines, data, largest = asyncio.run(_history(tmp_path, after))
        assert lines == 7 and largest <= 65536
        assert data == b"".join(line + b"\n" for line in whole.split(b"\n")[after:-1])


def fork(tmp_path, to="s2", prompts=0, session="s1"):
    return asyncio.run(Catalogue(tmp_path).fork("travel", session, to, prompts))


@pytest.mark.parametrize(("prompts", "kept"), [(0, 2), (1, 1), (2, 2)])
def test_a_fork_has_the_turns_that_have_ended(tmp_path, place, prompts, kept):
    path = place("s1", *turn("one"), *turn("two"), Prompt(text="under way"))
    before = path.read_bytes()
    info = fork(tmp_path, prompts=prompts)
    assert (info.session, info.forked_from, info.prompts, info.outcome) == ("s2", "s1", kept, "answered")
    copied = (tmp_path / "travel" / "s2.jsonl").read_bytes()
    entries = read_journal(copied, "travel", "s2").entries
    assert [entry.text for entry in entries if isinstance(entry, Prompt)] == ["one", "two"][:kept]
    assert path.read_bytes() == before
    assert oct((tmp_path / "travel" / "s2.jsonl").stat().st_mode)[-3:] == "600"
    assert json.loads(copied.split(b"\n")[0])["forked_from"] == "s1"


def test_a_fork_overwrites_nothing_and_leaves_nothing_behind(tmp_path, place):
    place("s1", *turn("one"))
    taken = place("s2", *turn("mine")).read_bytes()
    with pytest.raises(Malformed, match="'s2' already"):
        fork(tmp_path)
    with pytest.raises(Malformed, match="has 1 turns"):
        fork(tmp_path, "s3", prompts=5)
    place("bad", tail=b"rubbish\n" + written(*turn("x")))
    with pytest.raises(Failed, match="not readable"):
        fork(tmp_path, "s3", session="bad")
    with pytest.raises(NotFound):
        fork(tmp_path, "s3", session="none")
    assert (tmp_path / "travel" / "s2.jsonl").read_bytes() == taken
    assert sorted(path.name for path in (tmp_path / "travel").iterdir()) == [
        "bad.jsonl", "s1.jsonl", "s2.jsonl",
    ]  # fmt: skip
