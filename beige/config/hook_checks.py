"""Decides whether the hooks of an agent fit its plugins: who listens, and whether it can.

Works on plain values, as `checks` does: what has the wrong shape is `validation`'s to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beige.config.problems import Location, Problem, suggest
from beige.plugins import HOOKS, Provides


def check(
    at: Location, hooks: Any, plugins: Mapping[str, Any], provided: Mapping[str, Provides]
) -> Iterator[Problem]:
    seen: set[tuple[str, str]] = set()
    for index, entry in enumerate(hooks if isinstance(hooks, list) else []):
        if not isinstance(entry, dict) or not isinstance(plugin := entry.get("plugin"), str):
            continue
        place = (*at, index)
        if plugin not in plugins:
            choices = suggest(plugin, plugins, kind="plugin")
            yield Problem((*place, "plugin"), f"no such plugin: {plugin!r}", choices)
        on = entry["on"] if isinstance(entry.get("on"), list) else []
        yield from _check_on((*place, "on"), plugin, on, provided.get(plugin), seen)
        if "onFailure" in entry and (entry.get("observe") is True or on == ["modelSwitched"]):
            text = "has no effect: nobody waits for its answer"
            yield Problem((*place, "onFailure"), text, "remove it")


def _check_on(
    at: Location, plugin: str, on: list[Any], provides: Provides | None, seen: set[tuple[str, str]]
) -> Iterator[Problem]:
    """`seen` holds what was listened to before, and gets what is listened to here."""
    for index, hook in enumerate(on):
        if hook not in HOOKS:
            continue
        if provides is not None and hook not in provides.hooks:
            listed = ", ".join(provides.hooks) or "none"
            yield Problem(
                (*at, index), f"plugin {plugin!r} has no hook {hook!r}", f"its plugin.json lists: {listed}"
            )
        elif (plugin, hook) in seen:
            yield Problem((*at, index), f"{plugin!r} listens to {hook!r} already", "remove one of them")
        seen.add((plugin, hook))
