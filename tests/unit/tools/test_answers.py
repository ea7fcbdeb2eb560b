"""What a hook's answer is: three answers, and everything else is a failure that names no secret."""

from __future__ import annotations

from typing import Any

import pytest

from beige.messages.tools import HookName
from beige.plugins import Refuse, Replace
from services.tools.answers import MAX_BYTES, MAX_CHARACTERS, MAX_REASON, Answer, from_exception, from_value


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        pytest.param(None, Answer("unchanged"), id="nothing"),
        pytest.param(Replace("new"), Answer("replaced", "new"), id="text"),
        pytest.param(Replace("a\ud800"), Answer("replaced", "a?"), id="half a character"),
        pytest.param(Refuse("no\x1b[2J cards"), Answer("refused", reason="no [2J cards"), id="reason"),
        pytest.param(Refuse(" "), Answer("refused", reason="no reason was given"), id="no reason"),
        pytest.param(Refuse("x" * 999), Answer("refused", reason="x" * MAX_REASON), id="long reason"),
    ],
)
def test_the_three_answers(value: Any, answer: Answer) -> None:
    assert from_value("guard", "prePrompt", value) == answer


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("new", "answered prePrompt with a str instead of None, Replace or Refuse", id="str"),
        pytest.param(True, "answered prePrompt with a bool", id="bool"),
        pytest.param(Replace, "answered prePrompt with a type", id="class"),
        pytest.param(Replace(5), "replaced a text by a int", id="number"),  # type: ignore[arg-type]
        pytest.param(Refuse(None), "refused for a reason that is not text", id="none"),  # type: ignore[arg-type]
        pytest.param(Replace(" \n"), "replaced the prompt by nothing", id="empty"),
        pytest.param(Replace("x" * (MAX_CHARACTERS + 1)), "at most", id="too many characters"),
        pytest.param(Replace("🦊" * (MAX_BYTES // 4 + 1)), "at most", id="too many bytes"),
    ],
)
def test_what_is_no_answer_is_a_failure_and_never_unchanged(value: Any, problem: str) -> None:
    answer = from_value("guard", "prePrompt", value)
    assert answer.state == "failed"
    assert answer.reason.startswith("plugin 'guard' ")
    assert problem in answer.reason


@pytest.mark.parametrize("hook", ["postResponse", "modelSwitched"])
def test_an_answer_may_become_empty(hook: HookName) -> None:
    assert from_value("guard", hook, Replace("")) == Answer("replaced")


def test_an_exceptions_text_is_not_told() -> None:
    answer = from_exception("guard", ValueError("secret at /home/op"))
    assert answer.state == "failed"
    assert answer.reason == "plugin 'guard' failed (ValueError); the gateway's log has the details"
