"""Questions to the audit log: the newest first, filtered, in pages that lose and repeat nothing."""

import pytest

from beige.auditlog import Record, encode_line
from beige.messages.audit import AuditQuery
from services.audit import query
from services.audit.query import page


def record(n, **more):
    fields = {"agent": "travel", "session": f"s{n % 2}", "tool": "exec", **more}
    return Record(ts=f"2026-03-05T12:00:00.{n // 2:03d}Z", type="core_tool", args=[], decision="allowed",
                  phase="started", id=f"c-{n}", **fields)  # fmt: skip


@pytest.fixture
def log(tmp_path):
    """Twenty records, two of each millisecond, over two files."""
    path = tmp_path / "audit.jsonl"
    lines = [encode_line(record(n)) for n in range(20)]
    (tmp_path / "audit-20260305T120000.000Z.jsonl").write_bytes(b"".join(lines[:8]))
    path.write_bytes(b"".join(lines[8:]))
    return path


def ids(found):
    return [int(r.id[2:]) for r in found.records]


def test_the_newest_come_first_over_all_files(log):
    assert ids(page(log, AuditQuery())) == list(range(19, -1, -1))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 19, 20, 100])
def test_pages_lose_and_repeat_nothing(log, limit):
    seen, before = [], ""
    while True:
        found = page(log, AuditQuery(limit=limit, before=before))
        seen += ids(found)
        if not found.before:
            break
        before = found.before
    assert seen == list(range(19, -1, -1))


def test_filters(log):
    with log.open("ab") as file:
        file.write(encode_line(record(50, agent="other", tool="read")))
    assert ids(page(log, AuditQuery(agents=["other"]))) == [50]
    assert ids(page(log, AuditQuery(agents=["travel", "other"], tool="read"))) == [50]
    assert ids(page(log, AuditQuery(agents=["nobody"]))) == []
    assert len(page(log, AuditQuery(session="s1")).records) == 10


def test_an_answer_has_a_size(log):
    with log.open("ab") as file:
        for n in range(100, 200):
            file.write(encode_line(record(n, error="x" * 30_000)))
    found = page(log, AuditQuery(limit=500))
    assert len(found.records) < 25
    assert found.before
    assert found.complete


def test_an_empty_log_is_an_empty_page(tmp_path):
    assert page(tmp_path / "audit.jsonl", AuditQuery()).records == []


def test_a_long_log_says_that_it_was_not_read_to_its_beginning(log):
    with log.open("r+b") as file:
        file.truncate(query.SCAN_BYTES + 1)
    assert page(log, AuditQuery()).complete is False
