"""pytest fixtures over real processes. Loaded by `-p beige.testing.fixtures` (pyproject.toml)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from beige.testing.house import House, short_home

CONFIG = """{
  llm: { providers: { script: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" } },
  agents: {
    travel: { model: { provider: "script", model: "demo" }, tools: ["kv"],
              sandbox: { image: "beige-sandbox:latest" } },
    idle: { model: { provider: "script", model: "demo" }, tools: [],
            sandbox: { image: "beige-sandbox:latest" } },
  },
}
"""


@pytest.fixture
def house() -> Iterator[House]:
    """A throw-away home with two agents (`travel` may use kv, `idle` nothing); nothing runs yet."""
    with short_home() as home:
        home.config.write_text(CONFIG)
        (home.root / "script.json5").write_text('[{ say: "hello" }]\n')
        with House(home) as house:
            yield house
