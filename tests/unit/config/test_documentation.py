"""What is written about the configuration is true: the examples load, the page names every key."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from beige.cli.setup import STARTER
from beige.config import check_everything
from beige.config.schema import json_schema
from beige.paths import Home

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = [STARTER, *sorted((ROOT / "examples").glob("*.json5"))]
KEYS = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "TELEGRAM_TOKEN": "k"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_a_valid_configuration(home: Home, example: Path) -> None:
    shutil.copyfile(example, home.config)
    assert check_everything(home, KEYS).agents


def test_the_page_names_every_key_and_its_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    words = set(re.findall(r"[A-Za-z]+", page))
    schema = json_schema()
    for model in (schema, *schema["$defs"].values()):
        for key, value in model["properties"].items():
            assert key in words, f"{key} is not on the page"
            default = value.get("default")
            if isinstance(default, int | str) and default != "":
                shown = str(default).lower() if isinstance(default, bool) else str(default)
                assert shown in page, f"the default of {key}, {default}, is not on the page"
