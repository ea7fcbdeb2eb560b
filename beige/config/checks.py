"""Decides whether the parts of a configuration fit together: names that must exist elsewhere in it.

Works on plain values, not on the typed `Config`, so that one mistyped number doesn't hide an unknown
provider: whatever has the wrong shape is skipped here and reported by `validation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from beige.config import budget_checks, channel_checks, gateway_checks, hook_checks
from beige.config.models import OPEN_DEFAULTS, SandboxConfig
from beige.config.problems import Location, Problem, suggest
from beige.config.sizes import LEAST_TRANSFER, LEAST_WORKSPACE, SHM_BYTES, files_fit, size_bytes
from beige.destinations import RULE_FORM, is_address, parse_rule
from beige.errors import Malformed
from beige.messages import CORE_TOOLS
from beige.plugins import Provides

_SIZES: dict[str, Any] = {
    alias: SandboxConfig.model_fields[name].default
    for alias, name in (("memory", "memory"), ("tmpSize", "tmp_size"), ("homeSize", "home_size"))
}
"""Key in the file to the default of `SandboxConfig`."""


def check(raw: Mapping[str, Any], directory: Path, provided: Mapping[str, Provides]) -> list[Problem]:
    """`directory` is the config file's; `provided` maps plugin to what its manifest declares
    (plugins whose manifest could not be read are absent)."""
    providers, plugins = _object(_object(raw.get("llm")).get("providers")), _object(raw.get("plugins"))
    problems: list[Problem] = []
    for name, provider in providers.items():
        problems += _check_provider(("llm", "providers", name), _object(provider), directory)
    for name, agent in _object(raw.get("agents")).items():
        at, agent = ("agents", name), _object(agent)
        problems += _check_models(at, agent, providers)
        problems += _check_tools((*at, "tools"), _array(agent.get("tools")), plugins, provided)
        problems += hook_checks.check((*at, "hooks"), agent.get("hooks"), plugins, provided)
        problems += _check_plugin_configs((*at, "pluginConfigs"), agent, plugins)
        problems += _check_sandbox((*at, "sandbox"), _object(agent.get("sandbox")))
    problems += channel_checks.check(raw, provided)
    problems += gateway_checks.check(_object(raw.get("gateway")), directory)
    return problems + budget_checks.check(raw)


def _check_provider(at: Location, provider: dict[str, Any], directory: Path) -> Iterator[Problem]:
    if provider.get("concurrency") == 0:
        yield Problem((*at, "concurrency"), "0 would let no call through", "1 or more; -1 for no limit")
    if provider.get("api") == "scripted":
        yield from _check_scripted(at, provider, directory)
        return
    if "script" in provider:
        yield Problem((*at, "script"), "is only for a scripted model", 'write api: "scripted" or remove it')
    key = provider.get("apiKey")
    if key is None and provider.get("baseUrl") is None:
        yield Problem((*at, "apiKey"), "is missing", "a server that needs none needs a baseUrl")
    elif isinstance(key, str) and not key.strip():
        yield Problem((*at, "apiKey"), "is empty", "leave it out for a server that needs none")


def _check_scripted(at: Location, provider: dict[str, Any], directory: Path) -> Iterator[Problem]:
    script = provider.get("script")
    if script is None:
        yield Problem((*at, "script"), "is missing", 'api "scripted" needs the file it follows')
    elif isinstance(script, str) and "${" not in script and not (directory / script).is_file():
        yield Problem((*at, "script"), f"{script!r} is not a file", f"relative to {directory}")
    if provider.get("apiKey") is not None:
        yield Problem((*at, "apiKey"), 'api "scripted" takes no key', "remove it")


def _check_models(at: Location, agent: dict[str, Any], providers: dict[str, Any]) -> Iterator[Problem]:
    places: list[tuple[Location, Any]] = [((*at, "model"), agent.get("model"))]
    places += [((*at, "fallbackModels", i), m) for i, m in enumerate(_array(agent.get("fallbackModels")))]
    for place, model in places:
        provider = _object(model).get("provider")
        if isinstance(provider, str) and provider not in providers:
            choices = suggest(provider, providers, kind="provider")
            yield Problem((*place, "provider"), f"no such provider: {provider!r}", choices)
        window, threshold = _object(model).get("contextWindow"), _object(model).get("compactionThreshold")
        if isinstance(window, int) and isinstance(threshold, int) and threshold >= window:
            yield Problem(
                (*place, "compactionThreshold"), f"{threshold} is not below contextWindow, {window}",
                "leave room for the answer",
            )  # fmt: skip


def _check_tools(
    at: Location, tools: list[Any], plugins: dict[str, Any], provided: Mapping[str, Provides]
) -> Iterator[Problem]:
    known = {tool for plugin in provided.values() for tool in plugin.tools}
    all_known = set(provided) == set(plugins)
    for index, tool in enumerate(tools):
        place = (*at, index)
        if tool in CORE_TOOLS:
            yield Problem(place, f"{tool!r} is a core tool, which every agent has", "list only plugin tools")
        elif isinstance(tool, str) and tool not in known and all_known:
            yield Problem(place, f"no plugin provides the tool {tool!r}", suggest(tool, known, kind="tool"))
        elif tool in tools[:index]:
            yield Problem(place, f"{tool!r} is listed twice")


def _check_sandbox(at: Location, sandbox: dict[str, Any]) -> Iterator[Problem]:
    yield from _check_workspace((*at, "workspaceSize"), sandbox.get("workspaceSize"))
    yield from _check_profile(at, sandbox)
    egress = _object(sandbox.get("egress"))
    yield from _check_egress((*at, "egress", "allow"), _array(egress.get("allow")))
    yield from _check_transfer((*at, "egress", "transferSize"), egress.get("transferSize"))
    is_open = sandbox.get("profile") == "open"
    defaults = {**_SIZES, **(OPEN_DEFAULTS if is_open else {})}
    sizes = [sandbox.get(alias, defaults[alias]) for alias in _SIZES]
    if is_open:
        sizes[-1] = "0"
    try:
        fit = files_fit(*sizes)
    except (ValueError, TypeError):
        return  # not sizes, or still `${VAR}`
    if not fit:
        yield Problem(
            (*at, "memory"),
            f"{sizes[0]} is too little: tmpSize {sizes[1]}, homeSize {sizes[2]} and {SHM_BYTES >> 20}m of "
            "shared memory are more than half of it",
            "raise memory, or lower tmpSize or homeSize",
        )


def _check_workspace(at: Location, size: Any) -> Iterator[Problem]:
    with suppress(ValueError, TypeError):
        if size is not None and size_bytes(size) < LEAST_WORKSPACE:
            yield Problem(at, f"{size} is too little for a file system", f"{LEAST_WORKSPACE >> 20}m or more")


def _check_transfer(at: Location, size: Any) -> Iterator[Problem]:
    with suppress(ValueError, TypeError):
        if size is not None and size_bytes(size) < LEAST_TRANSFER:
            yield Problem(at, f"{size} is too little for a connection", f"{LEAST_TRANSFER >> 10}k or more")


def _check_profile(at: Location, sandbox: dict[str, Any]) -> Iterator[Problem]:
    is_open = sandbox.get("profile") == "open"
    if sandbox.get("root") is True and not is_open:
        yield Problem((*at, "root"), "is only for the profile open", 'write profile: "open" or remove it')
    if sandbox.get("network") == "bridge":
        yield from _check_bridge((*at, "network"), is_open, "egress" in sandbox)
    if is_open and "homeSize" in sandbox:
        yield Problem(
            (*at, "homeSize"), "has no effect in the profile open, where HOME is on disk", "remove it"
        )


def _check_bridge(at: Location, is_open: bool, has_egress: bool) -> Iterator[Problem]:
    if not is_open:
        yield Problem(at, '"bridge" is only for the profile open', 'write profile: "open" or remove it')
    if has_egress:
        yield Problem(at, '"bridge" makes egress.allow meaningless: nothing has to go that way', "keep one")


def _check_egress(at: Location, allow: list[Any]) -> Iterator[Problem]:
    """Egress is allowed in every profile: a list of hosts is a smaller grant than a writable root."""
    for index, text in enumerate(allow):
        if not isinstance(text, str) or "${" in text:
            continue
        try:
            rule = parse_rule(text)
        except Malformed as error:
            yield Problem((*at, index), str(error), f"allowed: {RULE_FORM}")
            continue
        if not rule.below and is_address(rule.host) and not ip_address(rule.host).is_global:
            yield Problem((*at, index), f"{text!r} is not an address on the internet", "it is refused anyway")


def _check_plugin_configs(at: Location, agent: dict[str, Any], plugins: dict[str, Any]) -> Iterator[Problem]:
    for plugin in _object(agent.get("pluginConfigs")):
        if plugin not in plugins:
            yield Problem((*at, plugin), "no such plugin", suggest(plugin, plugins, kind="plugin"))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
