"""`beige audit` over files as audit leaves them, and as a crash or an attacker might."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from beige.auditlog import Record, encode_line
from beige.cli.audit_query import Query, moment, tree, tree_lines
from beige.errors import Malformed

ROOT = Path(__file__).parents[3]


def record(call, phase="finished", ts="2026-03-05T12:00:00.000Z", **fields):
    defaults = {"agent": "travel", "type": "tool", "tool": "kv", "args": ["get", "a"], "decision": "allowed"}
    return Record(ts=ts, phase=phase, id=call, **{**defaults, **fields})


LOG = [
    record("1-1", "started", type="core_tool", tool="exec", args=["kv get a"], session="s1"),
    record("1-2", "started", ts="2026-03-05T12:00:01.000Z", parent="1-1", session="s1"),
    record("1-2", ts="2026-03-05T12:00:01.500Z", parent="1-1", session="s1", exit_code=0, duration_ms=1.5),
    record("1-3", ts="2026-03-05T12:00:02.000Z", parent="1-1", tool="git", decision="denied", error="no"),
    record("1-1", ts="2026-03-05T12:00:03.000Z", type="core_tool", tool="exec", args=["kv get a"],
           session="s1", exit_code=1),
    record("1-4", ts="2026-03-05T12:00:04.000Z", agent="other", args=["\x1b[2J\nevil\u202e"], exit_code=0),
]  # fmt: skip


@pytest.fixture
def home(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    lines = [encode_line(r) for r in LOG]
    (logs / "audit-20260305T120001.000Z.jsonl").write_bytes(b"".join(lines[:3]))
    (logs / "audit.jsonl").write_bytes(b"".join(lines[3:]) + b"not json\n" + b'{"torn')
    return tmp_path


def beige(home, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "beige.cli", "audit", *arguments], cwd=ROOT, text=True, check=False,
        capture_output=True, env=os.environ | {"BEIGE_HOME": str(home), "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip


def ids(run):
    return [(r["id"], r["phase"]) for r in map(json.loads, run.stdout.splitlines())]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [("1-1", "started"), ("1-2", "started"), ("1-2", "finished"), ("1-3", "finished"),
              ("1-1", "finished"), ("1-4", "finished")]),
        (["--agent", "other"], [("1-4", "finished")]),
        (["--tool", "git"], [("1-3", "finished")]),
        (["--type", "core_tool", "--phase", "finished"], [("1-1", "finished")]),
        (["--decision", "denied"], [("1-3", "finished")]),
        (["--errors"], [("1-3", "finished"), ("1-1", "finished")]),
        (["--session", "s1", "--phase", "started"], [("1-1", "started"), ("1-2", "started")]),
        (["--id", "1-2"], [("1-2", "started"), ("1-2", "finished")]),
        (["--parent", "1-1", "--phase", "finished"], [("1-2", "finished"), ("1-3", "finished")]),
        (["--since", "2026-03-05T12:00:01Z", "--until", "2026-03-05T12:00:02+00:00"],
         [("1-2", "started"), ("1-2", "finished")]),
    ],
)  # fmt: skip
def test_query_reads_all_files_and_picks(home, options, expected):
    run = beige(home, "query", "--json", *options)
    assert (run.returncode, ids(run)) == (0, expected)


def test_nothing_found_is_exit_1(home, tmp_path_factory):
    assert beige(home, "query", "--agent", "nobody").returncode == 1
    assert beige(tmp_path_factory.mktemp("empty"), "query").returncode == 1
    assert beige(tmp_path_factory.mktemp("empty"), "tail").returncode == 0


@pytest.mark.parametrize(
    "options", [["--since", "yesterday"], ["--type", "x"], ["--decision", "maybe"], ["--phase", "begun"]]
)
def test_a_wrong_option_is_explained(home, options):
    run = beige(home, "query", *options)
    assert run.returncode == 2
    assert options[1] in run.stderr


def test_tail_shows_the_newest_over_files(home):
    assert ids(beige(home, "tail", "-n", "4", "--json")) == [
        ("1-2", "finished"), ("1-3", "finished"), ("1-1", "finished"), ("1-4", "finished"),
    ]  # fmt: skip
    assert len(ids(beige(home, "tail", "--json"))) == 6


def test_tail_follows_over_a_rotation(home):
    log = home / "logs" / "audit.jsonl"
    log.write_bytes(encode_line(record("2-1")))
    command = [sys.executable, "-m", "beige.cli", "audit", "tail", "-f", "-n", "1", "--json"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"BEIGE_HOME": str(home)}
    )
    try:
        seen = [json.loads(process.stdout.readline())["id"]]
        with log.open("ab") as file:
            file.write(encode_line(record("2-2"))[:20])
            file.flush()
            file.write(encode_line(record("2-2"))[20:] + encode_line(record("2-3")))
        log.rename(home / "logs" / "audit-20260305T130000.000Z.jsonl")
        log.write_bytes(encode_line(record("2-4")))
        seen += [json.loads(process.stdout.readline())["id"] for _ in range(3)]
    finally:
        process.kill()
        process.communicate()
    assert seen == ["2-1", "2-2", "2-3", "2-4"]


@pytest.mark.parametrize("command", [["tail"], ["query"], ["query", "--tree"], ["query", "--json"]])
def test_nothing_controls_the_terminal(home, command):
    shown = beige(home, *command).stdout
    assert "evil" in shown
    assert all(char.isprintable() for char in shown.replace("\n", ""))


def test_the_tree_shows_calls_under_their_cause():
    lines = list(tree_lines(tree(LOG)))
    assert [line[:3] for line in lines] == ["12:", "├─ ", "└─ ", "12:"]
    assert "exec kv get a → exit 1" in lines[0]
    assert "kv get a → exit 0 1.5 ms" in lines[1]
    assert "git get a → denied: no" in lines[2]


def test_a_forged_loop_of_causes_does_not_hang():
    loop = [record("1", parent="2"), record("2", parent="1"), record("3", parent="3"), record("4")]
    assert [node.record.id for node in tree(loop)] == ["3", "4"]
    assert len(list(tree_lines(tree(loop)))) == 2


def test_a_deep_tree_is_shown():
    chain = [record(str(n), parent=str(n - 1)) for n in range(3000)]
    assert len(list(tree_lines(tree(chain), 80))) == 3000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("15m", "2026-03-05T11:45:00.000Z"),
        ("90s", "2026-03-05T11:58:30.000Z"),
        ("2h", "2026-03-05T10:00:00.000Z"),
        ("7d", "2026-02-26T12:00:00.000Z"),
        ("2026-03-05T12:00:00+02:00", "2026-03-05T10:00:00.000Z"),
        ("2026-03-05T12:00:00Z", "2026-03-05T12:00:00.000Z"),
    ],
)
def test_times(text, expected):
    assert moment(text, datetime(2026, 3, 5, 12, tzinfo=UTC)) == expected


@pytest.mark.parametrize("text", ["now", "-5m", "5", "2026-13-01", "\x1b"])
def test_what_is_no_time_is_malformed(text):
    with pytest.raises(Malformed):
        moment(text, datetime.now(UTC))


@pytest.mark.parametrize(
    ("asked", "found"),
    [("", 4), ("http", 2), ("http:ci", 1), ("cli", 1), ("ht", 0), ("http:", 0), ("http:c", 0)],
)
def test_http_is_every_tokens_channel(asked, found):
    log = [record(str(n), channel=channel) for n, channel in enumerate(("http:ci", "http:phone", "cli", ""))]
    assert sum(map(Query(channel=asked).matches, log)) == found


def test_the_tree_says_where_a_call_without_a_cause_came_from():
    log = [record("1", channel="http:ci"), record("2", parent="1", channel="http:ci")]
    first, second = tree_lines(tree(log))
    assert first.endswith("(through http:ci)") and "through" not in second


def test_a_query_without_conditions_matches_all():
    assert all(map(Query().matches, LOG))
