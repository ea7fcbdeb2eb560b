"""From an exec request to a command, and from its end to a result."""

from __future__ import annotations

from typing import Any

import pytest

from beige.config import SandboxConfig
from beige.errors import BeigeError, Malformed, TooLarge
from beige.messages import encode
from beige.messages.sandbox import ExecRequest
from beige.wire import MAX_BODY
from services.sandbox.channel import Captured, Exit
from services.sandbox.commands import MAX_KEPT, command_of, environment, result_of
from services.sandbox.frames import TAIL_BYTES

SEALED = SandboxConfig.model_validate({"image": "i"})


def command(**fields: Any):
    return command_of("travel", SEALED, ExecRequest(**fields), "token-1", 60.0, 1000)


def test_a_command_line_is_run_by_bash() -> None:
    made = command(command="echo 'a b'; -x")
    assert made.argv == ("/bin/bash", "-c", "echo 'a b'; -x")
    assert made.cwd == "/workspace"


def test_an_argument_vector_is_run_as_it_is() -> None:
    assert command(argv=["printf", "%s", "$HOME; id"]).argv == ("printf", "%s", "$HOME; id")


WRONG = [
    pytest.param({}, Malformed, "command", id="nothing"),
    pytest.param({"command": "x", "argv": ["y"]}, Malformed, "command", id="both"),
    pytest.param({"command": "a\0b"}, Malformed, "command", id="NUL"),
    pytest.param({"command": "x", "cwd": "/a\0b"}, Malformed, "path", id="NUL in cwd"),
    pytest.param({"command": "x", "env": {"": "1"}}, Malformed, "env", id="empty name"),
    pytest.param({"command": "x", "env": {"A=B": "1"}}, Malformed, "env", id="= in a name"),
    pytest.param({"command": "x", "env": {"A\n": "1"}}, Malformed, "env", id="newline in a name"),
    pytest.param({"command": "x", "env": {"A": "1\0B=2"}}, Malformed, "env.A", id="NUL in a value"),
    pytest.param({"command": "x", "env": {"BEIGE_CALL_TOKEN": "1"}}, Malformed, "env", id="the token"),
    pytest.param({"command": "x", "env": {"BEIGE_AGENT": "1"}}, Malformed, "env", id="the agent"),
    pytest.param({"command": "x", "env": {"A": "x" * 100_000}}, TooLarge, "env", id="long value"),
    pytest.param({"command": "x", "env": {f"A{n}": "" for n in range(257)}}, TooLarge, "env", id="many"),
]


@pytest.mark.parametrize(("fields", "error", "names"), WRONG)
def test_wrong_requests_name_the_field(fields: dict, error: type[BeigeError], names: str) -> None:
    with pytest.raises(error, match=f"^{names}"):
        command(**fields)


def test_the_environment_is_ours_plus_the_requests() -> None:
    made = environment("travel", SEALED, {"FOO": "bar"}, "token-1")
    assert made["FOO"] == "bar"
    assert (made["BEIGE_CALL_TOKEN"], made["BEIGE_AGENT"]) == ("token-1", "travel")
    assert made["PATH"].startswith("/tools/bin:")
    assert set(made) == {
        "PATH", "HOME", "LANG", "DENO_DIR", "DENO_NO_UPDATE_CHECK", "BEIGE_AGENT", "BEIGE_CALL_TOKEN", "FOO",
    }  # fmt: skip


def test_without_a_token_the_variable_is_absent() -> None:
    assert "BEIGE_CALL_TOKEN" not in environment("travel", SEALED, {}, "")


def captured(data: bytes, limit: int) -> Captured:
    stream = Captured(limit)
    for start in range(0, len(data), 7):
        stream.add(data[start : start + 7])
    return stream


def ended(status: int, timed_out: bool = False, out: bytes = b"", limit: int = 100) -> Exit:
    return Exit(status, timed_out, captured(out, limit), Captured(limit))


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(ended(0), 0, id="success"),
        pytest.param(ended(3), 3, id="exit code"),
        pytest.param(ended(-15), 143, id="signal"),
        pytest.param(ended(-9, timed_out=True), 124, id="timed out"),
    ],
)
def test_exit_codes_are_a_shells(end: Exit, code: int) -> None:
    assert result_of(end).exit_code == code


def test_output_within_the_limit_is_untouched() -> None:
    result = result_of(ended(0, out=b"\x00\xffabc"))
    assert (result.stdout, result.stdout_bytes, result.stdout_cut) == (b"\x00\xffabc", 5, 0)


def test_output_over_the_limit_keeps_head_and_tail_and_says_how_much_is_missing() -> None:
    data = b"h" * 100 + b"m" * 50_000 + b"t" * TAIL_BYTES
    result = result_of(ended(0, out=data))
    assert result.stdout_bytes == len(data)
    assert result.stdout_cut == 50_000
    notice = "\n… [50000 bytes left out] …\n".encode()
    assert result.stdout == b"h" * 100 + notice + b"t" * TAIL_BYTES


def test_output_a_little_over_the_limit_is_complete() -> None:
    data = bytes(range(150))
    result = result_of(ended(0, out=data))
    assert (result.stdout, result.stdout_cut) == (data, 0)


def test_the_largest_result_fits_an_answer() -> None:
    full = captured(bytes(MAX_KEPT + 10 * TAIL_BYTES), MAX_KEPT)
    assert len(encode(result_of(Exit(0, False, full, full)))) <= MAX_BODY
