"""Decides what becomes of each parameter of OpenAI's two APIs. Pure.

A parameter that would change what the answer means, and that an agent can't honour, is refused: silence
would be a lie. What only tunes sampling, cost or bookkeeping is ignored. `docs/openai-api.md` has the
same table (`tests/unit/gateway/test_openai_parameters.py` compares).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from services.gateway.openai.errors import Refused

Api = Literal["chat", "responses"]
Treatment = Literal["read", "ignored", "refused"]
_NOTHING: tuple[Any, ...] = (None, [], {}, "")
_NO_TOOL = (None, "none", "auto")


@dataclass(frozen=True)
class Parameter:
    name: str
    """With a dot: a field of the parameter before it."""
    apis: tuple[Api, ...]
    treatment: Treatment
    neutral: tuple[Any, ...] = ()
    """Of a refused one: the values that change nothing, and are let through."""


def _all(treatment: Treatment, names: str, *apis: Api) -> list[Parameter]:
    return [Parameter(name, apis or ("chat", "responses"), treatment) for name in names.split()]


PARAMETERS = (
    *_all("read", "model stream user metadata"),
    *_all("read", "messages stream_options reasoning_effort", "chat"),
    *_all("read", "input instructions previous_response_id conversation reasoning", "responses"),
    *_all("ignored", "temperature top_p parallel_tool_calls service_tier store safety_identifier "
          "prompt_cache_key prompt_cache_options prompt_cache_retention"),
    *_all("ignored", "max_tokens max_completion_tokens presence_penalty frequency_penalty seed verbosity "
          "prediction", "chat"),
    *_all("ignored", "top_k min_p repetition_penalty", "chat"),
    *_all("ignored", "max_output_tokens truncation include stream_options context_management text.verbosity",
          "responses"),
    Parameter("tools", ("chat", "responses"), "refused", _NOTHING),
    Parameter("tool_choice", ("chat", "responses"), "refused", _NO_TOOL),
    Parameter("top_logprobs", ("chat", "responses"), "refused", (None, 0)),
    Parameter("moderation", ("chat", "responses"), "refused", _NOTHING),
    Parameter("functions", ("chat",), "refused", _NOTHING),
    Parameter("function_call", ("chat",), "refused", _NO_TOOL),
    Parameter("n", ("chat",), "refused", (None, 1)),
    Parameter("logprobs", ("chat",), "refused", (None, False)),
    Parameter("logit_bias", ("chat",), "refused", _NOTHING),
    Parameter("stop", ("chat",), "refused", _NOTHING),
    Parameter("response_format", ("chat",), "refused", (None, {"type": "text"})),
    Parameter("modalities", ("chat",), "refused", (None, ["text"])),
    Parameter("audio", ("chat",), "refused", _NOTHING),
    Parameter("web_search_options", ("chat",), "refused", (None,)),
    Parameter("text.format", ("responses",), "refused", (None, {"type": "text"})),
    Parameter("background", ("responses",), "refused", (None, False)),
    Parameter("prompt", ("responses",), "refused", _NOTHING),
    Parameter("image", ("responses",), "refused", _NOTHING),
    Parameter("max_tool_calls", ("responses",), "refused", (None,)),
)  # fmt: skip


def check(api: Api, body: Mapping[str, Any]) -> None:
    """Refused (400) names the first parameter that can't be honoured, or that is unknown: what nobody
    here has heard of could change the meaning too."""
    for name, value in body.items():
        own = [p for p in PARAMETERS if api in p.apis and p.name.partition(".")[0] == name]
        if not own:
            raise Refused(f"unknown parameter: {name[:64]!r}", name[:64], "unknown_parameter")
        for parameter in own:
            _check(parameter, value)


def _check(parameter: Parameter, value: Any) -> None:
    _, _, inner = parameter.name.partition(".")
    if inner:
        value = value.get(inner) if isinstance(value, dict) else None
    if parameter.treatment == "refused" and not any(_same(value, fine) for fine in parameter.neutral):
        text = f"{parameter.name}: an agent can't honour this; leave it out"
        raise Refused(text, parameter.name, "unsupported_parameter")


def _same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)
