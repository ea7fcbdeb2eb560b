"""Deny by default: a copy shows sizes and a few named fields, and never what looks like a secret."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige import wire
from beige.messages import METHODS, encode
from beige.messages.llm import PromptEvent, PromptRequest
from beige.messages.sandbox import ExecRequest, ExecResult, ReadResult, WriteRequest
from beige.messages.tools import ToolCall, ToolResult
from services.tap import redact

CANARY = "swordfish-canary"


@pytest.mark.parametrize(
    ("kind", "method", "body", "shown"),
    [
        ("CALL", "sandbox.exec", ExecRequest(f"git commit -m {CANARY}", cwd="/w", env={"K": CANARY}),
         {"command": "git <30 characters>", "cwd": "/w", "env": "<1 items>"}),
        ("CALL", "sandbox.exec", ExecRequest(f"K={CANARY} run"), {"command": "<22 characters>"}),
        ("CALL", "sandbox.exec", ExecRequest(argv=["ls", CANARY]), {"argv": "ls <2 items>"}),
        ("CALL", "sandbox.exec", ExecRequest(argv=[f"/x/{CANARY}"]), {"argv": "<1 items>"}),
        ("REPLY", "sandbox.exec", ExecResult(1, CANARY.encode(), stdout_bytes=16, duration_ms=2.5),
         {"exit_code": 1, "stdout": "<16 bytes>", "stdout_bytes": 16, "duration_ms": 2.5}),
        ("CALL", "sandbox.write", WriteRequest("a b", content=CANARY.encode()),
         {"path": "a b", "content": "<16 bytes>"}),
        ("CALL", "sandbox.write", WriteRequest("f", size=9, sha256="ab" * 32),
         {"path": "f", "size": 9, "sha256": "ab" * 32}),
        ("REPLY", "sandbox.read", ReadResult("text", CANARY.encode(), size=16, lines=1),
         {"kind": "text", "content": "<16 bytes>", "size": 16, "lines": 1}),
        ("CALL", "tools.call", ToolCall("kv", ["set", "k", CANARY]), {"tool": "kv", "args": "set <3 items>"}),
        ("REPLY", "tools.call", ToolResult(False, CANARY, CANARY, 3),
         {"success": False, "output": "<16 characters>", "error": "<16 characters>", "exit_code": 3}),
        ("CALL", "llm.prompt", PromptRequest(CANARY),
         {"text": "<16 characters>", "settings": "<0 items>"}),
        ("ITEM", "llm.prompt", PromptEvent("text_delta", text=CANARY),
         {"kind": "text_delta", "text": "<16 characters>"}),
        ("ITEM", "llm.prompt", PromptEvent("tool_start", tool="exec", args={"command": CANARY}),
         {"kind": "tool_start", "tool": "exec", "args": "<1 items>"}),
    ],
)  # fmt: skip
def test_only_named_fields_are_shown(kind, method, body, shown):
    assert redact.body(kind, method, encode(body)) == shown


@pytest.mark.parametrize("kind", ["CALL", "REPLY", "ITEM", "CREDIT"])
@pytest.mark.parametrize("method", ["", ".", "new.method", *METHODS])
def test_a_field_nobody_listed_is_hidden(kind, method):
    body = msgspec.msgpack.encode({"secret": CANARY, "nested": {"a": [CANARY]}, "list": [CANARY], "n": 7})
    assert redact.body(kind, method, body) == {
        "secret": f"<{len(CANARY)} characters>", "nested": "<1 items>", "list": "<1 items>", "n": "<hidden>",
    }  # fmt: skip


def test_a_listed_field_of_another_shape_is_hidden():
    body = msgspec.msgpack.encode({"tool": [CANARY], "cwd": {"x": CANARY}, "args": {"a": CANARY}})
    assert CANARY not in str(redact.body("CALL", "tools.call", body))


SECRETS = [
    "sk-ant-api03-abcdefghijklmnop",
    "sk-proj-ABCDEFGH12345678",
    "pk_live_0123456789abcdef",
    "Bearer abc.def-ghi",
    "authorization: Basic dXNlcjpwYXNz",
    "ghp_0123456789abcdefghij",
    "github_pat_11ABCDEFG0123456789",
    "xoxb-123456789012-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA-0123456789abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "123456789:AAEhBOweik6ad6PsVMRxjeQKXkl9Fm5cKyE",
    "api_key=0a1b2c",
    'OPENAI_API_KEY="zzz"',
    "password: hunter2",
    "MY_SECRET_THING=hunter2",
    "0123456789abcdef" * 4,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_cut_out(secret):
    shown = redact.text(f"before {secret} ")
    assert redact.HIDDEN in shown
    assert shown.startswith("before ")
    for part in secret.replace('"', " ").replace("=", " ").replace(":", " ").split()[-1:]:
        assert part not in shown


def test_a_password_in_an_address_is_cut_out():
    assert redact.text("git clone https://me:hunter2@example.org/x") == (
        f"git clone https://{redact.HIDDEN}@example.org/x"
    )


@pytest.mark.parametrize("text", ["ls -l /workspace", "Permission denied: tool 'git' not allowed", "a:b", ""])
def test_ordinary_text_stays(text):
    assert redact.text(text) == text


def test_a_secret_never_gets_through_in_any_field():
    secret = "sk-ant-api03-abcdefghijklmnop"
    for kind in ("CALL", "REPLY", "ITEM", "ERR"):
        for method in METHODS:
            fields = {name: secret for name in ("path", "cwd", "tool", "error", "model", "session", secret)}
            raw = wire.error_body(secret) if kind == "ERR" else msgspec.msgpack.encode(fields)
            assert secret not in str(redact.body(kind, method, raw))


@given(st.text(max_size=3000))
def test_shown_text_is_short(text):
    assert len(redact.text(text)) <= redact.MAX_TEXT + 1


@given(
    st.binary(max_size=300), st.sampled_from(["CALL", "REPLY", "ITEM", "ERR"]), st.sampled_from(list(METHODS))
)
def test_hostile_bodies_are_shown_as_sizes(raw, kind, method):
    assert isinstance(redact.body(kind, method, raw), dict)


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x91" * 100_000, b"\x80", b"\xc7\x01\x05a"])
def test_what_cannot_be_read_is_a_size(raw):
    assert redact.body("CALL", "tools.call", raw) in ({"": f"<{len(raw)} bytes>"}, {})
