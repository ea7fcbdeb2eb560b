"""`guard`: refuses or masks prompts and answers that hold what looks like a credential. No I/O.

A configuration that it can't read is an exception, with each call of an agent whose own part is wrong: the
hook fails, and what it should have looked at goes no further (`onFailure`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from beige.plugins import HookAnswer, HookInvocation, PluginContext, PluginRegistrar, Refuse, Replace

CREDENTIALS = {
    "a private key": (
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:.*?-----END [A-Z ]{0,40}PRIVATE KEY-----|.*)"
    ),
    "an AWS access key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,255}",
    "a Google API key": r"\bAIza[A-Za-z0-9_-]{35}",
    "a model provider's key": r"\bsk-[A-Za-z0-9_-]{20,255}",
    "a Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}",
    "a Stripe key": r"\b[rs]k_live_[A-Za-z0-9]{20,255}",
    "a signed token (JWT)": (
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4000}+\.eyJ[A-Za-z0-9_-]{8,8000}+\.[A-Za-z0-9_-]{8,4000}"
    ),
}
"""What it is called, and how it looks: forms that their makers publish, so that a plain word is none of them.
None begins in the middle of what it could be part of: no text is read more than a few times."""
KEYS = {"action", "credentials", "patterns", "words"}


@dataclass(frozen=True)
class Rules:
    action: str
    forms: tuple[tuple[str, re.Pattern[str]], ...]

    def answer(self, text: str) -> HookAnswer:
        found, masked = [], text
        for name, form in self.forms:
            masked, times = form.subn(f"[masked: {name}]", masked)
            found += [name] * bool(times)
        if not found:
            return None
        if self.action == "mask":
            return Replace(masked)
        return Refuse(f"it holds what looks like {', '.join(found)}")


def rules(config: dict[str, Any]) -> Rules:
    """ValueError names the key that is wrong."""
    if unknown := set(config) - KEYS:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(KEYS))}")
    action = config.get("action", "refuse")
    if action not in ("refuse", "mask"):
        raise ValueError('action must be "refuse" or "mask"')
    if not isinstance(config.get("credentials", True), bool):
        raise ValueError("credentials must be true or false")
    forms = dict(CREDENTIALS) if config.get("credentials", True) else {}
    forms |= _patterns(config.get("patterns", {}))
    compiled = [(name, re.compile(form, re.DOTALL)) for name, form in forms.items()]
    return Rules(action, (*compiled, *_words(config.get("words", []))))


def _patterns(patterns: Any) -> dict[str, str]:
    if not isinstance(patterns, dict) or not all(isinstance(form, str) for form in patterns.values()):
        raise ValueError("patterns must be { name: regular expression }")
    for name, form in patterns.items():
        if re.compile(form).match(""):
            raise ValueError(f"patterns: {name!r} matches nothing at all, and so everywhere")
    return patterns


def _words(words: Any) -> list[tuple[str, re.Pattern[str]]]:
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("words must be a list of words")
    if not words:
        return []
    either = "|".join(re.escape(word.strip()) for word in words)
    return [("a listed word", re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.IGNORECASE))]


@lru_cache(maxsize=256)
def _read(config: str) -> Rules:
    return rules(json.loads(config))


class Guard:
    def register(self, reg: PluginRegistrar) -> None:
        reg.hook("prePrompt", self.check)
        reg.hook("postResponse", self.check)

    def check(self, call: HookInvocation) -> HookAnswer:
        return _read(json.dumps(call.config)).answer(call.text)


def create_plugin(config: dict[str, Any], ctx: PluginContext) -> Guard:
    rules(config)
    return Guard()
