"""Whatever a handler returns or raises, the agent gets valid text of bounded size and nothing secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.messages import encode
from beige.messages.tools import ToolResult
from beige.plugins import ToolError, ToolOutput, UsageError
from beige.wire import MAX_BODY
from services.tools.results import MAX_OUTPUT, cut, from_exception, from_value


@pytest.mark.parametrize(
    ("value", "result"),
    [
        pytest.param("OK", ("OK", "", 0), id="text"),
        pytest.param(None, ("", "", 0), id="nothing"),
        pytest.param(ToolOutput("a", "b", 3), ("a", "b", 3), id="all"),
        pytest.param(ToolOutput(error="b"), ("", "b", 1), id="error-implies-1"),
        pytest.param(ToolOutput(exit_code=True), ("", "", 1), id="bool-is-a-number"),
        pytest.param(b"x", ("", "plugin 'p' returned a bytes instead of text", 1), id="bytes"),
        pytest.param({"a": 1}, ("", "plugin 'p' returned a dict instead of text", 1), id="dict"),
        pytest.param(ToolOutput(5), ("", "plugin 'p' returned output that is not text", 1), id="int"),  # type: ignore[arg-type]
        pytest.param(
            ToolOutput(exit_code=256),
            ("", "plugin 'p' returned an exit code that is not a number from 0 to 255", 1),
            id="exit-code",
        ),
        pytest.param(
            ToolOutput(exit_code="1"),  # type: ignore[arg-type]
            ("", "plugin 'p' returned an exit code that is not a number from 0 to 255", 1),
            id="exit-code-type",
        ),
        pytest.param("a\ud800b", ("a?b", "", 0), id="surrogate"),
    ],
)
def test_what_a_handler_returns(value: Any, result: tuple[str, str, int]) -> None:
    assert from_value("p", value) == result


@pytest.mark.parametrize(
    ("error", "result"),
    [
        pytest.param(ToolError("no"), ("", "no", 1), id="tool-error"),
        pytest.param(ToolError("no", 7), ("", "no", 7), id="exit-code"),
        pytest.param(ToolError("no", 0), ("", "no", 1), id="zero-is-no-error"),
        pytest.param(UsageError("how"), ("", "how", 2), id="usage"),
    ],
)
def test_errors_meant_for_the_agent(error: ToolError, result: tuple[str, str, int]) -> None:
    assert from_exception("p", error) == result


def test_the_text_of_any_other_exception_is_kept_from_the_agent() -> None:
    result = from_exception("p", FileNotFoundError(2, "No such file", "/home/op/.beige/keys/secret"))
    assert result.exit_code == 1
    assert result.error == "plugin 'p' failed (FileNotFoundError); the gateway's log has the details"


def test_an_exception_cannot_speak_through_its_class_name() -> None:
    error = type("Evil\nname /etc/passwd" * 20, (Exception,), {})("x")
    assert "\n" not in from_exception("p", error).error
    assert "/" not in from_exception("p", error).error
    assert len(from_exception("p", error).error) < 150


@pytest.mark.parametrize("text", ["x" * 3_000_000, "é" * 3_000_000, "\ud800" * 3_000_000, "🦊" * 1_000_000])
def test_huge_output_is_cut_with_a_notice_and_fits_a_body(text: str) -> None:
    result = from_value("p", ToolOutput(text, text, 1))
    assert f"of {len(text)} characters shown]" in result.output
    assert len(encode(ToolResult(False, *result))) < MAX_BODY


@given(st.text(st.characters()), st.integers(1, 60))
def test_cut_keeps_a_valid_head(text: str, limit: int) -> None:
    clean = text.encode(errors="replace").decode()
    head, _, notice = cut(text, limit).partition("\n[cut: ")
    if len(clean.encode()) <= limit:
        assert cut(text, limit) == clean
    else:
        assert clean.startswith(head)
        assert len(head.encode()) <= limit
        assert notice.endswith(f"of {len(text)} characters shown]\n")


def test_output_at_the_limit_is_whole() -> None:
    assert from_value("p", "x" * MAX_OUTPUT).output == "x" * MAX_OUTPUT
