"""Decides what a hook's answer means for a prompt or an answer, and in which words it is told. No I/O.

plugin says    prePrompt                           postResponse
unchanged      the text goes on as it is           the same
replaced       the model gets the new text         the caller does; the model goes on from its own words
refused        no model sees it: the turn ends     the caller doesn't see it: the turn ends
(fails)        as refused, or, with onFailure "continue", as unchanged
"""

from __future__ import annotations

from collections.abc import Sequence

from beige.config import HookConfig
from beige.errors import BeigeError, Denied, Failed
from beige.messages.tools import HookName, HookResult
from services.llm.conversation import Hook

_WHAT = {"prePrompt": "the prompt", "postResponse": "the answer"}
_REASON_LIMIT = 1000


def heard(entry: HookConfig, hook: HookName, answer: HookResult | BeigeError) -> Hook:
    """What to write down. A failure stops the text unless the configuration says otherwise: a guard that
    crashes, or is gone, must not open the door (`test_a_guard_that_is_gone_opens_no_door`)."""
    found = Hook(plugin=entry.plugin, hook=hook, state="failed", reason="it was not asked for a decision")
    if isinstance(answer, BeigeError):
        found.reason = str(answer)[:_REASON_LIMIT]
    elif answer.state != "told":
        found.state, found.text, found.reason = answer.state, answer.text, answer.reason
    if found.state == "failed" and entry.on_failure == "continue":
        found.state = "skipped"
    return found


def said(text: str, hooks: Sequence[Hook]) -> str:
    """The text as the hooks left it: empty if one stopped it."""
    for hook in hooks:
        if not hook.passed:
            return ""
        text = hook.text if hook.state == "replaced" else text
    return text


def is_stopped(hooks: Sequence[Hook]) -> bool:
    return bool(hooks) and not hooks[-1].passed


def told(hook: Hook) -> str:
    """What the caller is told while the turn goes on; empty if there is nothing to say."""
    what = _WHAT[hook.hook]
    if hook.state == "replaced":
        before = "before a model saw it" if hook.hook == "prePrompt" else "before it was shown"
        return f"plugin '{hook.plugin}' changed {what} {before}"
    if hook.state == "skipped":
        return f"{what} goes on without plugin '{hook.plugin}': {hook.reason}"
    return ""


def stopped(hook: Hook) -> str:
    """Why the turn ends."""
    if hook.state == "refused":
        return f"plugin '{hook.plugin}' refused {_WHAT[hook.hook]}: {hook.reason}"
    gone = "no model was shown the prompt" if hook.hook == "prePrompt" else "the answer is not shown"
    return f"plugin '{hook.plugin}' could not check {_WHAT[hook.hook]}: {hook.reason}; {gone} (onFailure)"


def raise_stopped(hooks: Sequence[Hook]) -> None:
    """Denied or Failed if one of them stopped the text."""
    if is_stopped(hooks):
        last = hooks[-1]
        raise (Denied if last.state == "refused" else Failed)(stopped(last), executed="maybe")
