"""The bundled guard: what it finds, what it leaves alone, and that nothing passes a wrong configuration."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from beige.paths import bundled_plugins_dir
from beige.plugins import HookAnswer, HookInvocation, PluginContext, Refuse, Replace


def module() -> ModuleType:
    file = bundled_plugins_dir() / "guard" / "plugin.py"
    spec = importlib.util.spec_from_file_location("guard_under_test", file)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["guard_under_test"] = loaded  # dataclasses look there
    spec.loader.exec_module(loaded)
    return loaded


GUARD = module()
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
FOUND = [
    (KEY, "a private key"),
    ("AKIA" + "ABCDEFGH23456789", "an AWS access key"),
    ("ghp_" + "a1B2" * 9, "a GitHub token"),
    ("github_pat_" + "a1_B" * 10, "a GitHub token"),
    ("glpat-" + "x" * 20, "a GitLab token"),
    ("AIza" + "x" * 35, "a Google API key"),
    ("sk-ant-api03-" + "x" * 40, "a model provider's key"),
    ("xoxb-" + "1" * 12, "a Slack token"),
    ("sk_live_" + "x" * 24, "a Stripe key"),
    ("eyJ" + "a" * 20 + ".eyJ" + "b" * 20 + "." + "c" * 20, "a signed token (JWT)"),
]
PLAIN = [
    "", "Plan a trip to Rome.", "sk-", "task-management-for-the-whole-organisation-2026", "AKIA is a prefix",
    "the ghp_ prefix", "-----BEGIN CERTIFICATE-----", "eyJ.eyJ.x", "a sketch (sk-1)",
]  # fmt: skip


def check(text: str, **config: Any) -> HookAnswer:
    guard = GUARD.create_plugin({}, PluginContext("guard", Path("/"), logging.getLogger("guard")))
    answer: HookAnswer = guard.check(HookInvocation("prePrompt", "a", "s", "c", text, "p/m", config=config))
    return answer


@pytest.mark.parametrize(("secret", "name"), FOUND, ids=[name for _, name in FOUND])
def test_a_credential_is_refused_and_not_repeated(secret: str, name: str) -> None:
    assert check(f"use this:\n{secret}, please") == Refuse(f"it holds what looks like {name}")


@pytest.mark.parametrize(("secret", "name"), FOUND, ids=[name for _, name in FOUND])
def test_a_credential_is_masked_and_the_rest_is_left(secret: str, name: str) -> None:
    assert check(f"use {secret}, please", action="mask") == Replace(f"use [masked: {name}], please")


@pytest.mark.parametrize("text", PLAIN)
def test_what_only_looks_a_little_like_it_passes(text: str) -> None:
    assert check(text) is None


def test_a_key_that_is_cut_off_is_masked_to_the_end() -> None:
    assert check(f"x {KEY[:50]}", action="mask") == Replace("x [masked: a private key]")


def test_all_that_was_found_is_named_once() -> None:
    text = " ".join([FOUND[1][0], FOUND[2][0], FOUND[2][0]])
    assert check(text) == Refuse("it holds what looks like an AWS access key, a GitHub token")


def test_words_and_patterns_of_the_operators() -> None:
    own = {"words": ["Project Zebra", "größe"], "patterns": {"an order": "ORD-[0-9]{8}"}, "action": "mask"}
    masked = "[masked: a listed word] has [masked: an order], [masked: a listed word]"
    assert check("project zebra has ORD-12345678, GRÖSSE Größe", **own) == Replace(
        masked.replace(", ", ", GRÖSSE ")
    )
    assert check("projects zebra; zebras; Größen", **own) is None
    assert check(FOUND[2][0], credentials=False) is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"mode": "mask"}, "unknown: mode; allowed: action, credentials, patterns, words"),
        ({"action": "drop"}, "action must be"),
        ({"words": "zebra"}, "words must be a list"),
        ({"words": [" "]}, "words must be a list"),
        ({"patterns": ["x"]}, "patterns must be"),
        ({"patterns": {"all": "x*"}}, "matches nothing at all"),
        ({"credentials": "no"}, "credentials must be true or false"),
    ],
)
def test_a_wrong_configuration_lets_nothing_pass(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        GUARD.create_plugin(config, PluginContext("guard", Path("/"), logging.getLogger("guard")))
    with pytest.raises(ValueError, match=problem):  # an agent's own part
        check("hello", **config)


def test_a_long_text_without_an_end_is_read_once() -> None:
    assert check("eyJ" + "a" * 500_000) is None
    assert check("eyJ-" * 125_000) is None
    assert check("-----BEGIN " * 50_000) is None
