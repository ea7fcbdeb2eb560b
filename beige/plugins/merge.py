"""An agent's view of a plugin's config: objects merge deep, everything else is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def deep_merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict; arrays and scalars of `override` replace those of `base`. Shares no container."""
    merged = {key: _copy(value) for key, value in base.items()}
    for key, value in override.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, Mapping)
        merged[key] = deep_merge(below, value) if both else _copy(value)  # type: ignore[arg-type]
    return merged


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value
