"""docs/security.md names tests that exist, and leaves out no line and no file of attacks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ATTACKS = Path(__file__).parent
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py)::(test_\w+)`", PAGE)

CAN = [
    "Read/write files in `/workspace`", "Execute code (any language)", "Call allowed tools via `$PATH`",
    "Access the internet", "Read tool documentation", "Install packages in the sandbox",
    "Persist data across sessions",
]  # fmt: skip
CANNOT = [
    "Read gateway env vars or API keys", "Access the host filesystem", "Modify tool code or launchers",
    "Use tools not in its allowlist", "Impersonate another agent", "Access another agent's workspace",
    "Access the Docker daemon", "Modify gateway config", "Access audit logs", "Bypass tool logging",
]  # fmt: skip
"""The lines of the security model that this project set out with."""


def functions(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_each_test_the_page_names_exists(file, name):
    path = ROOT / file if "/" in file else ATTACKS / file
    assert name in functions(path)


def test_a_test_that_is_not_there_would_be_missed_control():
    assert "test_that_nobody_wrote" not in functions(ATTACKS / "test_api_keys.py")
    assert len(NAMED) > 50


@pytest.mark.parametrize("line", CAN + CANNOT)
def test_each_line_of_the_model_has_its_row_and_a_test(line):
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| {line} |")]
    assert len(rows) == 1
    assert re.search(r"::test_\w+`", rows[0])


def test_each_row_of_a_table_names_a_test():
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and not row.endswith("| test |")]
    assert len(rows) >= len(CAN + CANNOT)
    assert [row for row in rows if "::test_" not in row] == []


def test_each_file_of_attacks_is_on_the_page():
    files = {path.name for path in ATTACKS.glob("test_*.py")} - {Path(__file__).name}
    assert files == {file for file, _ in NAMED if "/" not in file}
