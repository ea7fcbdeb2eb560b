"""Bodies are as the providers sent them (captured, shortened)."""

from datetime import UTC, datetime

import pytest

from services.llm.providers.failures import ModelError, from_status, named, redact, retry_after

KEY = "sk-ant-api03-Zr8WcXq7hJ2mV5tB9nL0"

QUOTA = "You exceeded your current quota, please check your plan and billing details."
INPUT_LIMIT = "This request would exceed your organization's rate limit of 50,000 input tokens per minute"
NO_CREDIT = "Your credit balance is too low to access the Anthropic API."
OPENAI_LONG = "This model's maximum context length is 128000 tokens. However, you requested 130012 tokens."
LLAMA_LONG = "the request exceeds the available context size (4096 tokens), try increasing it"

TOO_LONG = [
    ("anthropic with the answer", 400, "input length and `max_tokens` exceed context limit: 1 + 2 > 2"),
    ("openai responses", 400, "Your input exceeds the context window of this model."),
    ("gemini", 400, "The input token count (1196265) exceeds the maximum number of tokens allowed"),
    ("mistral", 400, "Prompt contains 65673 tokens, too large for model with 32 maximum context length"),
    ("xai", 400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    ("openrouter", 400, "This endpoint's maximum context length is 32768 tokens. However, you"),
    ("bedrock", 400, "Input is too long for requested model."),
    ("vllm", 400, "The decoder prompt (length 5021) is longer than the maximum model length of 4096."),
    ("lm studio", 400, "the model is loaded with context length of only 4096 tokens, which is not enough"),
    ("moonshot", 400, "Invalid request: Your request exceeded model token limit: 131072"),
    ("zai", 400, "Prompt exceeds max length"),
    ("minimax", 400, "invalid params, context window exceeds limit"),
    ("copilot", 400, "prompt token count of 145063 exceeds the limit of 128000"),
    ("dashscope", 400, "Range of input length should be [1, 129024]"),
    ("tgi", 422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."),
    ("llama.cpp 500", 500, "context size exceeded"),
]  # fmt: skip


def anthropic(error_type, message):
    return {"type": "error", "error": {"type": error_type, "message": message}}


def openai(message, error_type=None, code=None):
    return {"message": message, "type": error_type, "param": None, "code": code}


CASES = {
    "anthropic 429": (429, anthropic("rate_limit_error", INPUT_LIMIT), "rate_limited"),
    "openai 429": (
        429,
        openai("Rate limit reached for gpt-4o", "tokens", "rate_limit_exceeded"),
        "rate_limited",
    ),
    "openai no credit": (429, openai(QUOTA, "insufficient_quota", "insufficient_quota"), "billing"),
    "gemini quota": (429, {"message": QUOTA, "status": "RESOURCE_EXHAUSTED"}, "rate_limited"),
    "anthropic no credit": (400, anthropic("invalid_request_error", NO_CREDIT), "billing"),
    "anthropic 529": (529, anthropic("overloaded_error", "Overloaded"), "overloaded"),
    "overloaded in a stream": (200, anthropic("overloaded_error", "Overloaded"), "overloaded"),
    "rate limit in a stream": (None, openai("Rate limit exceeded", "requests"), "rate_limited"),
    "503 in plain text": (503, "upstream connect error or disconnect/reset before headers", "overloaded"),
    "500": (500, anthropic("api_error", "Internal server error"), "overloaded"),
    "502 page": (502, "<html>\n<head><title>502 Bad Gateway</title></head>", "overloaded"),
    "anthropic 401": (401, anthropic("authentication_error", "invalid x-api-key"), "auth"),
    "openai 401": (401, openai("Incorrect API key provided: sk-x.", code="invalid_api_key"), "auth"),
    "403": (403, anthropic("permission_error", "no access"), "auth"),
    "402": (402, {"message": "Insufficient credits"}, "billing"),
    "anthropic too long": (
        400,
        anthropic("invalid_request_error", "prompt is too long: 212304 tokens > 200000 maximum"),
        "context_too_long",
    ),
    "openai too long": (400, openai(OPENAI_LONG, code="context_length_exceeded"), "context_too_long"),
    "llama.cpp too long": (400, openai(LLAMA_LONG, "exceed_context_size_error"), "context_too_long"),
    **{
        f"{vendor} too long": (status, openai(message), "context_too_long")
        for vendor, status, message in TOO_LONG
    },
    "anthropic 413": (
        413,
        anthropic("request_too_large", "Request exceeds the maximum size"),
        "context_too_long",
    ),
    "error in a stream": (200, anthropic("api_error", "Internal server error"), "overloaded"),
    "time-out in a stream": (200, anthropic("timeout_error", "Request timed out"), "timeout"),
    "refused in a stream": (200, anthropic("invalid_request_error", "messages: odd"), "bad_request"),
    "no credit in a stream": (None, openai(QUOTA, code="insufficient_quota"), "billing"),
    "key in a stream": (200, anthropic("authentication_error", "invalid x-api-key"), "auth"),
    "words alone in a stream": (None, "Service temporarily unavailable", "overloaded"),
    "nothing in a stream": (None, openai("odd"), "bad_response"),
    "a redirect": (307, "", "bad_request"),
    "unknown model": (404, anthropic("not_found_error", "model: claude-9"), "bad_request"),
    "bad tool": (400, anthropic("invalid_request_error", "tools.0.name: String should match"), "bad_request"),
    "request timeout": (408, "", "timeout"),
    "no body": (418, None, "bad_request"),
}


@pytest.mark.parametrize(("status", "body", "kind"), CASES.values(), ids=CASES.keys())
def test_each_known_answer_has_its_kind(status, body, kind):
    assert from_status(status, body, {}).kind == kind


NOW = datetime(2026, 3, 5, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Thu, 05 Mar 2026 12:01:30 GMT"}, 90.0),
        ({"retry-after": "Thu, 05 Mar 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "x"}, None),
        ({"retry-after-ms": "x", "retry-after": "3"}, 3.0),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_understood_in_each_form(headers, seconds):
    assert retry_after(headers, NOW) == seconds


def test_the_wait_is_told_and_kept():
    error = from_status(429, {"message": "slow down"}, {"retry-after": "7"})
    assert error.retry_after_s == 7.0
    assert error.message == "rate limited (429), retry after 7 s: slow down"


def test_an_auth_error_leaves_out_what_the_provider_said():
    error = from_status(401, {"message": "Incorrect API key provided: sk-ant*******tB9nL0."}, {})
    assert error.message == "the provider refused the key (401): check llm.providers in the configuration"


@pytest.mark.parametrize(
    "echo",
    [KEY, KEY[:12], KEY[-9:], f"Bearer {KEY}", KEY[4:20]],
    ids=["whole", "head", "tail", "header", "middle"],
)
def test_a_key_a_provider_echoes_is_not_repeated(echo):
    error = named(ModelError("bad_request", f"no such thing: {echo}!"), "p/m", [KEY])
    pieces = {KEY[at : at + 8] for at in range(len(KEY) - 7)}
    assert not any(piece in str(error) for piece in pieces)
    assert str(error).startswith("p/m: no such thing: ")
    assert error.args == (error.message,)


def test_a_short_dummy_key_is_redacted_whole_and_no_key_changes_nothing():
    assert redact("key none here", ["none"]) == "key [key] here"
    assert redact("nothing to hide", ["", "absent-key"]) == "nothing to hide"


def test_a_long_message_is_cut_and_made_one_line():
    error = from_status(400, {"message": "x\n" * 5000}, {})
    assert len(error.message) < 600 and "\n" not in error.message
