"""Turns plain values into a `Config`, and pydantic's complaints into problems people can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from beige.config.models import IMPLIED_API, IN_WORDS, OPEN_DEFAULTS, Config, PluginConfig
from beige.config.problems import Location, Problem, suggest

_JSON_KINDS: dict[type, str] = {bool: "true or false", str: "a string", int: "a number", float: "a number",
                                list: "an array", dict: "an object", type(None): "null"}  # fmt: skip
_WANTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "tuple_type": "an array",
}


def validate(raw: Mapping[str, Any]) -> tuple[Config | None, list[Problem]]:
    """The typed configuration, or why there is none.

    Goes through JSON because only there pydantic's strict mode takes arrays for tuples while it
    still refuses `"5"` and `true` for a number.
    """
    try:
        return Config.model_validate_json(json.dumps(raw)), []
    except ValidationError as error:
        return None, [_problem(detail) for detail in error.errors(include_url=False)]


def valid_plugin(value: Any) -> PluginConfig | None:
    try:
        return PluginConfig.model_validate_json(json.dumps(value))
    except ValidationError:
        return None


def with_implied_api(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with the API that a provider's name stands for. Wrong shapes are left for validation."""
    result = dict(raw)
    llm = raw.get("llm")
    if isinstance(llm, dict) and isinstance(llm.get("providers"), dict):
        result["llm"] = {**llm, "providers": {n: _complete(n, p) for n, p in llm["providers"].items()}}
    return result


def with_profile_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with the larger limits of the profile "open" where none are written."""
    agents = raw.get("agents")
    if not isinstance(agents, dict):
        return dict(raw)
    return {**raw, "agents": {name: _enlarged(agent) for name, agent in agents.items()}}


def _enlarged(agent: Any) -> Any:
    sandbox = agent.get("sandbox") if isinstance(agent, dict) else None
    if not isinstance(sandbox, dict) or sandbox.get("profile") != "open":
        return agent
    return {**agent, "sandbox": {**OPEN_DEFAULTS, **sandbox}}


def _complete(name: str, provider: Any) -> Any:
    if isinstance(provider, dict) and name in IMPLIED_API:
        return {"api": IMPLIED_API[name], **provider}
    return provider


def _problem(detail: ErrorDetails) -> Problem:
    kind, location, context = detail["type"], detail["loc"], detail.get("ctx", {})
    if location and location[-1] == "[key]":
        location = location[:-1]
    if kind == "extra_forbidden":
        return Problem(location, "unknown key", suggest(str(location[-1]), keys_at(location[:-1])))
    if kind == "missing":
        return Problem(location, "is missing", _allowed_at(location))
    if kind == "literal_error":
        return Problem(
            location, f"{detail['input']!r} is not allowed", _allowed_at(location, str(detail["input"]))
        )
    if kind == "string_pattern_mismatch":
        return Problem(location, "has the wrong form", f"allowed: {IN_WORDS[context['pattern']]}")
    if kind in _WANTED:
        found = _JSON_KINDS.get(type(detail["input"]), "something else")
        return Problem(location, f"must be {_WANTED[kind]}, not {found}")
    if kind in ("int_from_float", "finite_number"):
        return Problem(
            location, "must be a whole number" if kind == "int_from_float" else "must be a finite number"
        )
    message = detail["msg"].removeprefix("Input ")
    return Problem(location, message[0].lower() + message[1:])


def keys_at(location: Location) -> list[str]:
    """The keys allowed in the object at `location`."""
    model = _type_at(location)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return [field.alias or name for name, field in model.model_fields.items()]
    return []


def _allowed_at(location: Location, found: str = "") -> str:
    """The choices for the value at `location`, or what it means."""
    if choices := get_args(_type_at(location)):
        if all(isinstance(choice, str) for choice in choices):
            return suggest(found, choices)
    model = _type_at(location[:-1])
    if isinstance(model, type) and issubclass(model, BaseModel):
        for field in model.model_fields.values():
            if field.alias == location[-1] and field.description:
                return "it is: " + field.description[0].lower() + field.description[1:].rstrip(".")
    return ""


def _type_at(location: Location) -> Any:
    """The annotation of the value at `location`, found by walking the models."""
    current: Any = Config
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel):
            fields = {field.alias or name: field.annotation for name, field in current.model_fields.items()}
            current = fields.get(str(part))
        elif get_origin(current) in (dict, tuple):
            current = get_args(current)[1 if get_origin(current) is dict else 0]
        else:
            return None
    return current
