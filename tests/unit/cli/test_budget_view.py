"""What `beige budget` shows: a table for people, numbers for programs."""

import pytest

from beige.cli.budget import as_json, render, used_up
from beige.messages.policy import BudgetLine, BudgetReport

NEW = "2026-03-06T00:00:00Z"
DAY = BudgetLine("day", "travel", "", 1500, 2_500_000, 500, 1_000_000, 10_000, None, 0.8, NEW)
SESSION = BudgetLine("session", "travel", "s\x1b[2J1", 5, 0, 0, 0, None, 5_000_000_000)
HOUSE = BudgetLine("house", "", "", 0, 0, 0, 0)


def test_the_table_names_used_reserved_limit_left_and_when_it_is_new():
    lines = render(BudgetReport([DAY, SESSION, HOUSE], ["zai/glm-5"])).splitlines()
    assert lines[0].split("  ")[0] == "AGENT"
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    assert cells[1] == ["travel", "today", "1,500 tokens", "500 tokens", "10,000 tokens", "8,000 tokens",
                        "2026-03-06T00:00:00Z"]  # fmt: skip
    assert cells[2] == ["$0.0025", "$0.0010", "-", "-"]
    assert cells[3] == ["travel", "session s\\x1b[2J1", "5 tokens", "0 tokens", "-", "-", "never"]
    assert cells[4] == ["$0", "$0", "$5.00", "$5.00"]
    assert cells[5] == ["(all)", "today", "0 tokens", "0 tokens", "-", "-", "never"]
    assert lines[-1] == "Without a price, counted in tokens alone: zai/glm-5"


def test_json_has_dollars_and_nothing_below_zero():
    found = as_json(DAY)
    assert found["tokens"] == {"used": 1500, "reserved": 500, "limit": 10_000, "left": 8000}
    assert found["usd"] == {"used": 0.0025, "reserved": 0.001, "limit": None, "left": None}
    assert (found["scope"], found["agent"], found["session"]) == ("day", "travel", None)
    over = BudgetLine("total", "a", "", 20, 0, 0, 0, 10)
    assert as_json(over)["tokens"]["left"] == 0


@pytest.mark.parametrize(
    ("line", "at_its_end"),
    [
        (DAY, False), (HOUSE, False), (BudgetLine("total", "a", "", 10, 0, 0, 0, 10), True),
        (BudgetLine("total", "a", "", 0, 5, 0, 0, 10, 5), True),
        (BudgetLine("total", "a", "", 0, 4, 9, 9, 10, 5), False),
    ],
)  # fmt: skip
def test_a_limit_is_used_up_by_what_is_used_not_by_what_is_reserved(line, at_its_end):
    assert used_up(line) == at_its_end
