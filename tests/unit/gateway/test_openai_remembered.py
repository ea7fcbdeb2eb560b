"""The file of places: what it keeps, how much, and what a damaged one does."""

import asyncio
import stat

from services.gateway.openai.recognise import Place
from services.gateway.openai.remembered import Remembered


def with_memory(path, use, **more):
    async def main():
        memory = Remembered(path, **more)
        try:
            return await use(memory)
        finally:
            await memory.close()

    return asyncio.run(main())


def test_places_outlive_the_process(tmp_path):
    path = tmp_path / "places.sqlite3"
    place = Place("s", 3, b"digest", True)
    with_memory(path, lambda memory: memory.keep({b"a": Place("s", 2), b"b": place}))
    with_memory(path, lambda memory: memory.keep({b"a": Place("s", 9)}))
    found = with_memory(path, lambda memory: memory.find([b"a", b"b", b"c"]))
    assert found == {b"a": Place("s", 9), b"b": place}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_oldest_go_when_there_are_too_many(tmp_path):
    async def use(memory):
        for number in range(20):
            await memory.keep({b"%d" % number: Place("s", number)})
            if number == 18:
                await memory.keep({b"0": Place("s", 0)})
        return await memory.find([b"%d" % number for number in range(20)])

    assert set(with_memory(tmp_path / "places.sqlite3", use, max_places=3)) == {b"0", b"18", b"19"}


def test_many_are_asked_for_at_once(tmp_path):
    async def use(memory):
        keys = [b"%d" % number for number in range(1234)]
        await memory.keep(dict.fromkeys(keys, Place("s", 1)))
        return await memory.find(keys)

    assert len(with_memory(tmp_path / "places.sqlite3", use)) == 1234


def test_a_damaged_file_is_put_aside(tmp_path):
    path = tmp_path / "places.sqlite3"
    path.write_bytes(b"no database" * 1000)
    assert with_memory(path, lambda memory: memory.find([b"a"])) == {}
    assert path.with_suffix(".damaged").read_bytes().startswith(b"no database")
    with_memory(path, lambda memory: memory.keep({b"a": Place("s", 1)}))
    assert with_memory(path, lambda memory: memory.find([b"a"])) == {b"a": Place("s", 1)}


def test_a_link_in_its_place_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"untouched")
    path = tmp_path / "places.sqlite3"
    path.symlink_to(target)
    with_memory(path, lambda memory: memory.keep({b"a": Place("s", 1)}))
    assert target.read_bytes() == b"untouched"


def test_without_a_disk_it_works_until_the_end_of_the_process(tmp_path):
    async def use(memory):
        await memory.keep({b"a": Place("s", 1)})
        return await memory.find([b"a"])

    path = tmp_path / "missing" / "places.sqlite3"
    assert with_memory(path, use) == {b"a": Place("s", 1)}
    assert not path.parent.exists()
