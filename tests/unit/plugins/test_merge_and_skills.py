"""Per-agent plugin configs merge deep, arrays are replaced; skills have bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from beige.plugins import deep_merge, skills
from beige.plugins.skills import MAX_SKILL


@pytest.mark.parametrize(
    ("base", "override", "merged"),
    [
        pytest.param({}, {}, {}, id="empty"),
        pytest.param({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}, id="deep"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="arrays-replaced"),
        pytest.param({"a": {"x": 1}}, {"a": 5}, {"a": 5}, id="object-by-scalar"),
        pytest.param({"a": 5}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="scalar-by-object"),
        pytest.param({"a": 1}, {"a": None}, {"a": None}, id="null-replaces"),
        pytest.param({"a": [{"x": 1}]}, {"b": 2}, {"a": [{"x": 1}], "b": 2}, id="kept"),
    ],
)
def test_merge(base: dict[str, Any], override: dict[str, Any], merged: dict[str, Any]) -> None:
    assert deep_merge(base, override) == merged


def test_a_merged_config_shares_nothing_with_its_sources() -> None:
    base: dict[str, Any] = {"a": {"list": [1]}, "b": [{"x": 1}]}
    merged = deep_merge(base, {"c": {"d": [2]}})
    merged["a"]["list"].append(9)
    merged["b"][0]["x"] = 9
    assert base == {"a": {"list": [1]}, "b": [{"x": 1}]}


def test_skill_comes_first_and_missing_files_are_left_out(tmp_path: Path) -> None:
    assert skills(tmp_path) == []
    (tmp_path / "README.md").write_text("readme")
    assert skills(tmp_path) == [("README.md", "readme")]
    (tmp_path / "SKILL.md").write_bytes(b"skill \xff")
    assert [name for name, _ in skills(tmp_path)] == ["SKILL.md", "README.md"]


def test_a_long_skill_is_cut_with_a_notice_at_a_character(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("é" * MAX_SKILL)
    ((_, text),) = skills(tmp_path)
    assert text.endswith(f"[cut after {MAX_SKILL} bytes]\n")
    assert text.startswith("é" * (MAX_SKILL // 2) + "\n")
