"""`provider-health.json`: what is written is read again, and no content of it stops policy."""

import json
import logging
import stat

import pytest

from services.policy import health

UNTIL = {("anthropic", "claude"): 1_764_000_000.5, ("zai", "ünïcode/model"): 1_764_000_900.0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "provider-health.json"


def test_what_is_saved_is_loaded(path):
    assert health.load(path) == {}
    health.save(path, UNTIL)
    assert health.load(path) == UNTIL
    health.save(path, {})
    assert health.load(path) == {}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_write_that_was_torn_by_a_crash_changes_nothing(path):
    health.save(path, UNTIL)
    path.with_suffix(".new").write_text("{")
    assert health.load(path) == UNTIL
    health.save(path, {})
    assert health.load(path) == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"version": 2, "models": []}',
     b'{"version": 1, "models": [{"provider": "x", "model": "y", "coolingUntil": "soon"}]}',
     b'{"version": 1, "models": [], "more": 1}', b" " * (health.MAX_BYTES + 1)],
    ids=["empty", "torn", "binary", "array", "null", "deep", "newer", "wrong", "unknown", "huge"],
)  # fmt: skip
def test_garbage_is_noticed_and_means_a_clean_start(path, content, caplog):
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert health.load(path) == {}
    assert "provider-health.json is not readable" in caplog.text
    health.save(path, UNTIL)
    assert len(json.loads(path.read_text())["models"]) == 2


def test_a_file_that_cannot_be_written_is_told_and_survived(tmp_path, caplog):
    health.save(tmp_path / "none" / "provider-health.json", UNTIL)
    assert "can't be written" in caplog.text
