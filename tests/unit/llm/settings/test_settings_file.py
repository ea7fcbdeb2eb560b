"""The settings file on a real disk, with real other processes that write it at the same time."""

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from beige.errors import Overloaded, TooLarge
from beige.messages.session_settings import SessionSettings
from services.llm.settings.file import MAX_BYTES, MOST_SESSIONS, SettingsFile

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import sys
from pathlib import Path
from beige.messages.session_settings import SessionSettings
from services.llm.settings.file import SettingsFile
for n in range(25):
    SettingsFile(Path(sys.argv[1])).change("a", f"{sys.argv[2]}-{n}", lambda _: SessionSettings(verbose=True))
"""


def verbose(_):
    return SessionSettings(verbose=True)


def damaged(directory):
    return sorted(path for path in directory.iterdir() if ".damaged-" in path.name)


def test_what_is_set_is_read_by_the_next_process_and_is_private(tmp_path):
    root = tmp_path / "sessions"
    SettingsFile(root).change("a", "s1", lambda _: SessionSettings(verbose=False, thinking_level="high"))
    assert SettingsFile(root).read("a", "s1") == (
        SessionSettings(verbose=False, thinking_level="high"), [],
    )  # fmt: skip
    assert SettingsFile(root).read("b", "s1") == (SessionSettings(), [])
    path = root / "session-settings.json"
    assert json.loads(path.read_text())["sessions"] == {"a/s1": {"verbose": False, "thinkingLevel": "high"}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_session_that_says_nothing_any_more_leaves_no_entry(tmp_path):
    SettingsFile(tmp_path).change("a", "s1", verbose)
    SettingsFile(tmp_path).change("a", "s1", lambda _: SessionSettings())
    assert json.loads((tmp_path / "session-settings.json").read_text()) == {"v": 1, "sessions": {}}


def test_processes_that_write_at_once_lose_no_change(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-P", "-c", WRITER, tmp_path, name], env={"PYTHONPATH": str(ROOT)})
        for name in ("x", "y", "z")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    found = json.loads((tmp_path / "session-settings.json").read_text())["sessions"]
    assert set(found) == {f"a/{name}-{n}" for name in ("x", "y", "z") for n in range(25)}


DAMAGE = {
    "torn": b'{"v": 1, "sessions": {"a/s1": {"verb',
    "not json": b"\x00\xff",
    "unknown setting": b'{"v": 1, "sessions": {"a/s1": {"verbos": true}}}',
    "other version": b'{"v": 2, "sessions": {}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_named_when_read_and_kept_when_written(tmp_path, content):
    path = tmp_path / "session-settings.json"
    path.write_bytes(content)
    layer, notices = SettingsFile(tmp_path).read("a", "s1")
    assert layer == SessionSettings()
    assert notices[0].startswith("session-settings.json is damaged")
    assert path.read_bytes() == content
    layer, notices = SettingsFile(tmp_path).change("a", "s1", verbose)
    assert layer == SessionSettings(verbose=True)
    (kept,) = damaged(tmp_path)
    assert kept.read_bytes() == content
    assert kept.name in notices[0]
    assert SettingsFile(tmp_path).read("a", "s1") == (layer, [])


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_something_else_in_its_place_is_damage_and_never_followed(tmp_path, kind):
    """A local attacker who could create a file there must not make us read or write another."""
    (tmp_path / "secret").write_text('{"v": 1, "sessions": {"a/s1": {"verbose": true}}}')
    path = tmp_path / "session-settings.json"
    if kind == "symlink":
        path.symlink_to(tmp_path / "secret")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    layer, notices = SettingsFile(tmp_path).read("a", "s1")
    assert (layer, len(notices)) == (SessionSettings(), 1)
    SettingsFile(tmp_path).change("a", "s1", verbose)
    assert path.is_file() and not path.is_symlink()
    assert "a/s1" in (tmp_path / "secret").read_text()


def test_a_file_that_would_grow_over_its_limit_stays_as_it_is(tmp_path):
    path = tmp_path / "session-settings.json"
    entries = (f'"a{n % 100}/{n:07d}":{{"verbose":true}}' for n in range(MAX_BYTES // 37))
    path.write_text('{"v":1,"sessions":{' + ",".join(entries) + "}}")
    before = path.read_bytes()
    assert SettingsFile(tmp_path).read("a1", "0000001") == (SessionSettings(verbose=True), [])
    with pytest.raises(TooLarge, match=r"session-settings\.json"):
        SettingsFile(tmp_path).change("a", "s1", verbose)
    assert path.read_bytes() == before


def test_a_held_lock_ends_in_a_clear_error_not_in_waiting_for_ever(tmp_path):
    holder = os.open(tmp_path / "session-settings.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(Overloaded, match=r"session-settings\.lock"):
            SettingsFile(tmp_path, lock_s=0.05).change("a", "s1", verbose)
    finally:
        os.close(holder)
    assert not (tmp_path / "session-settings.json").exists()


def test_one_agents_clients_can_not_fill_the_file_for_the_others(tmp_path):
    path = tmp_path / "session-settings.json"
    entries = ",".join(f'"a/{n}":{{"verbose":true}}' for n in range(MOST_SESSIONS))
    path.write_text('{"v":1,"sessions":{' + entries + "}}")
    with pytest.raises(TooLarge, match="sessions of a "):
        SettingsFile(tmp_path).change("a", "one-more", verbose)
    SettingsFile(tmp_path).change("a", "7", lambda _: SessionSettings())
    SettingsFile(tmp_path).change("a", "one-more", verbose)
    SettingsFile(tmp_path).change("b", "s1", verbose)
    assert SettingsFile(tmp_path).read("b", "s1") == (SessionSettings(verbose=True), [])
