"""What the doctor says about hooks."""

from __future__ import annotations

from typing import Any

import pytest

from beige.cli.doctor_hooks import listeners
from beige.config import Config


@pytest.mark.parametrize(
    ("hook", "verdict", "text"),
    [
        (
            {"on": ("prePrompt", "postResponse")},
            "ok",
            "travel: guard decides about prePrompt, postResponse and refuses when it fails (10 s)",
        ),
        (
            {"on": ("prePrompt",), "onFailure": "continue", "timeoutS": 2.5},
            "warning",
            "travel: guard decides about prePrompt and goes on without it when it fails (2.5 s)",
        ),
        (
            {"on": ("prePrompt", "modelSwitched"), "observe": True},
            "ok",
            "travel: guard is told of prePrompt, modelSwitched",
        ),
        (
            {"on": ("postResponse", "modelSwitched")},
            "ok",
            "travel: guard decides about postResponse and refuses when it fails (10 s); "
            "is told of modelSwitched",
        ),
    ],
    ids=["decides", "lenient", "observes", "both"],
)
def test_each_hook_is_a_line_and_one_that_opens_when_it_fails_a_warning(
    hook: dict[str, Any], verdict: str, text: str
) -> None:
    agent = {"model": {"provider": "p", "model": "m"}, "tools": (), "sandbox": {"image": "i"}}
    agents = {"travel": agent | {"hooks": ({"plugin": "guard", **hook},)}, "plain": agent}
    (finding,) = listeners(Config.model_validate({"llm": {"providers": {}}, "agents": agents}))
    assert (finding.verdict, finding.text) == (verdict, text)
    assert bool(finding.fix) == (verdict == "warning")
