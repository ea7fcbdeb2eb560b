"""Rows of the benchmarks: medians of per-round ratios, targets that can be missed, a file others can read."""

import json

import pytest

from benchmarks.rig import Fact, alternate, row, table, write


def test_the_ratio_is_the_median_of_the_rounds_own_ratios():
    found = row("x", [1.0, 9.0, 2.0], [10.0, 90.0, 40.0])
    assert (found.ours_ms, found.plain_ms, found.ratio) == (2.0, 40.0, 0.1)
    assert (found.target, found.ok) == ("", True)


@pytest.mark.parametrize(
    ("ours", "limits", "ok"),
    [
        ([1.0], {"ratio_limit": 0.1}, True),
        ([1.1], {"ratio_limit": 0.1}, False),
        ([15.0], {"above_limit_ms": 5.0}, True),
        ([15.1], {"above_limit_ms": 5.0}, False),
    ],
)
def test_targets_can_be_missed(ours, limits, ok):
    found = row("x", ours, [10.0], **limits)
    assert found.ok == ok
    assert ("MISSED" in table([found])) != ok


def test_contenders_alternate_and_the_first_round_only_warms_up():
    order = []

    def contender(name):
        def once():
            order.append(name)
            return float(len(order))

        return once

    samples = alternate({"a": contender("a"), "b": contender("b")}, 2)
    assert "".join(order) == "abbaab"
    assert samples == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


def test_the_result_is_json(tmp_path):
    write([row("x", [1.0], [2.0])], tmp_path / "out" / "bench.json")
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == {
        "rows": [{"name": "x", "ours_ms": 1.0, "plain_ms": 2.0, "ratio": 0.5, "target": "", "ok": True}],
        "facts": [],
    }


@pytest.mark.parametrize(("least", "ok"), [(None, True), (5, True), (6, False)])
def test_a_number_without_a_plain_thing_beside_it_may_have_a_target(least, ok, tmp_path):
    found = Fact("streams", 5, "of 6", least)
    assert found.ok == ok
    assert ("MISSED" in table([found])) != ok
    write([found, row("x", [1.0], [1.0])], tmp_path / "b.json")
    written = json.loads((tmp_path / "b.json").read_text())
    assert [fact["ok"] for fact in written["facts"]] == [ok]
    assert len(written["rows"]) == 1
