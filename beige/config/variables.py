"""Decides where `${VAR}` and `${VAR:-default}` are replaced, and which process needs which variable.

Some sections may hold secrets. A process resolves a secret section only if it asks for it; everywhere
else the text `${VAR}` stays as it stands in the file, so the value never enters that process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from beige.config.problems import Location, Problem
from beige.supervisor.launch import MODULES

READERS = tuple(program for program in MODULES if program != "broker")
"""The programs that read the configuration; the broker needs nothing from it."""

SECRET_SECTIONS: dict[str, tuple[Location, ...]] = {
    "llm": (("llm", "providers"),),
    "tools": (("plugins", "*", "config"), ("agents", "*", "pluginConfigs")),
    "channels": (("channels", "*", "config"),),
    "egress": (("egress", "upstreamProxy"),),
}
"""Section name to the places that only the program of the same name resolves."""

_SYNTAX_RULE = "write ${NAME} or ${NAME:-default}, and $${ for the characters themselves"
_REFERENCE = re.compile(
    r"\$(?P<escaped>\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<has_default>:-(?P<default>[^}]*))?\}|(?P<bad>\$\{)"
)


def resolve(
    raw: dict[str, Any], secrets: frozenset[str], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[Problem]]:
    """`raw` with variables replaced, except in secret sections not named in `secrets`."""
    problems: list[Problem] = []

    def visit(value: Any, location: Location) -> Any:
        if isinstance(value, dict):
            return {key: visit(item, (*location, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [visit(item, (*location, index)) for index, item in enumerate(value)]
        section = secret_section(location)
        if not isinstance(value, str) or (section and section not in secrets):
            return value
        return _replace(value, location, environ, problems)

    return visit(raw, ()), problems


def variables_for(raw: Mapping[str, Any]) -> dict[str, set[str]]:
    """The variables each program needs, by program: its own secret section's and the plain sections'."""
    needed: dict[str, set[str]] = {program: set() for program in MODULES}
    for location, text in _strings(raw, ()):
        section = secret_section(location)
        names = {found["name"] for found in _REFERENCE.finditer(text) if found["name"]}
        for program in [section] if section else READERS:
            needed[program] |= names
    return needed


def secret_section(location: Location) -> str:
    """The program (`llm`, `tools`, ...), or empty for a place that is no secret."""
    for section, places in SECRET_SECTIONS.items():
        for place in places:
            if _below(place, location):
                return section
    return ""


def _below(place: Location, location: Location) -> bool:
    long_enough = len(location) >= len(place)
    return long_enough and all(want in ("*", key) for want, key in zip(place, location, strict=False))


def _strings(value: Any, location: Location) -> Iterator[tuple[Location, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, (*location, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, (*location, index))
    elif isinstance(value, str):
        yield location, value


def _replace(text: str, location: Location, environ: Mapping[str, str], problems: list[Problem]) -> str:
    def value_of(found: re.Match[str]) -> str:
        if found["escaped"]:
            return "${"
        if found["bad"]:
            problems.append(Problem(location, "holds a broken variable", _SYNTAX_RULE))
            return ""
        value = environ.get(found["name"], "")
        if value or found["has_default"]:
            return value or found["default"]
        problems.append(_unset(found["name"], location, environ))
        return found[0]

    return _REFERENCE.sub(value_of, text)


def _unset(name: str, location: Location, environ: Mapping[str, str]) -> Problem:
    state = "is empty" if name in environ else "is not set"
    return Problem(location, f"the variable {name} {state}", f"set it, or write ${{{name}:-default}}")
