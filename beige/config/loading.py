"""`load`: from `config.json5` to a checked `Config`, with every problem named at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from beige.config import source
from beige.config.checks import check
from beige.config.models import Config
from beige.config.mounts import examine_mounts
from beige.config.problems import ConfigProblems, Problem
from beige.config.validation import valid_plugin, validate, with_implied_api, with_profile_defaults
from beige.config.variables import SECRET_SECTIONS, resolve
from beige.errors import BeigeError
from beige.paths import Home
from beige.plugins import Manifest, Provides, channel_owners, load_manifest, resolve_plugin_dir, tool_owners

ALL_SECRETS = frozenset(SECRET_SECTIONS)
NO_SECRETS: frozenset[str] = frozenset()


def load(home: Home, secrets: frozenset[str] = NO_SECRETS, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration of `home`.

    `secrets` names the secret sections this process resolves (`llm`, `tools`); in the others
    `${VAR}` stays as it is written. Raises ConfigError with one line per problem.
    """
    return build(source.read(home.config), home, secrets, environ)


def check_everything(home: Home, environ: Mapping[str, str] = os.environ) -> Config:
    """As every process will see it: valid without secrets (returned), and with all of them."""
    raw = source.read(home.config)
    config, problems = examine(raw, home, NO_SECRETS, environ)
    _, more = examine(raw, home, ALL_SECRETS, environ)
    return _sound(config, more + problems)


def build(raw: dict[str, Any], home: Home, secrets: frozenset[str], environ: Mapping[str, str]) -> Config:
    """`load` for a file already read."""
    return _sound(*examine(raw, home, secrets, environ))


def examine(
    raw: dict[str, Any], home: Home, secrets: frozenset[str], environ: Mapping[str, str]
) -> tuple[Config | None, list[Problem]]:
    """The configuration, if its shape is right, and everything that is wrong with it."""
    unknown = secrets - ALL_SECRETS
    if unknown:
        raise ValueError(f"no such secret section: {', '.join(sorted(unknown))}")
    resolved, problems = resolve(raw, secrets, environ)
    complete = with_profile_defaults(with_implied_api(resolved))
    config, found = validate(complete)
    provided, unreadable = _provided(complete, home)
    _, refused = examine_mounts(complete, home, environ)
    return config, problems + found + unreadable + check(complete, home.config.parent, provided) + refused


def _sound(config: Config | None, problems: list[Problem]) -> Config:
    if config is None or problems:
        raise ConfigProblems(problems)
    return config


def _provided(raw: dict[str, Any], home: Home) -> tuple[dict[str, Provides], list[Problem]]:
    """What the manifests of the plugins declare; a plugin section that isn't valid is left out."""
    plugins = raw.get("plugins")
    manifests: dict[str, Manifest] = {}
    problems: list[Problem] = []
    for name, value in plugins.items() if isinstance(plugins, dict) else ():
        plugin = valid_plugin(value)
        if plugin is None:
            continue
        try:
            manifests[name] = load_manifest(resolve_plugin_dir(home, plugin), name)
            tool_owners(manifests.values())
            channel_owners(manifests.values())
        except BeigeError as error:
            problems.append(Problem(("plugins", name, "path"), str(error)))
    return {name: manifest.provides for name, manifest in manifests.items()}, problems
