"""Reading a log: rotated files in order, forwards and backwards, torn and foreign lines passed over."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige import auditlog
from beige.auditlog import Record, encode_line


def record(call, phase="started"):
    return Record(
        ts="t", agent="a", type="tool", tool="kv", args=[], decision="allowed", phase=phase, id=call
    )  # fmt: skip


def test_files_are_found_oldest_first(tmp_path):
    names = ["audit-20260305T120000.001Z.jsonl", "audit-20260305T120000.000Z.jsonl", "audit.jsonl",
             "audit.torn-20260305T120000.1Z", "audit-backup.jsonl", "llm.log"]  # fmt: skip
    for name in names:
        (tmp_path / name).touch()
    found = [p.name for p in auditlog.files(tmp_path / "audit.jsonl")]
    assert found == [names[1], names[0], names[2]]
    assert auditlog.rotated_name(datetime(2026, 3, 5, 12, 0, 0, 1999, UTC)) == names[0]


@pytest.mark.parametrize("torn", [b"", b"half a li", b"x" * 300_000])
@given(st.lists(st.binary(max_size=300).map(lambda b: b.replace(b"\n", b"")).filter(bool), max_size=30))
def test_backwards_is_forwards_reversed(tmp_path_factory, torn, lines):
    path = tmp_path_factory.mktemp("log") / "audit.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)
    assert list(auditlog.lines(path)) == lines
    assert list(auditlog.lines_backwards(path)) == lines[::-1]


def test_backwards_over_block_boundaries(tmp_path):
    path = tmp_path / "audit.jsonl"
    lines = [bytes([65 + n % 26]) * (n % 50_000 + 1) for n in range(0, 500_000, 7919)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert list(auditlog.lines_backwards(path)) == lines[::-1]


def test_an_endless_line_is_skipped_in_bounded_memory(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"one\n" + b"x" * 3_000_000 + b"\ntwo\n")
    assert list(auditlog.lines(path)) == [b"one", b"two"]
    assert list(auditlog.lines_backwards(path)) == [b"two", b"one"]


def test_records_backwards_span_files_and_stop_at_their_limit(tmp_path):
    old, new = tmp_path / "audit-20260305T120000.001Z.jsonl", tmp_path / "audit.jsonl"
    old.write_bytes(encode_line(record("1")) + b"not json\n" + encode_line(record("2")))
    new.write_bytes(encode_line(record("3")) + encode_line(record("4")) + b'{"torn')
    assert [r.id for r in auditlog.records_backwards(new, 1 << 20)] == ["4", "3", "2", "1"]
    size = len(encode_line(record("4")))
    assert [r.id for r in auditlog.records_backwards(new, 3 * size)] == ["4", "3", "2"]


@pytest.mark.parametrize("line", [b"", b"null", b"[]", b"{}", b'{"ts":1}', b"\xff", b"[" * 100_000])
def test_what_is_no_record_is_none(line):
    assert auditlog.decode_line(line) is None
