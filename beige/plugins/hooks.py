"""What a plugin's author imports for hooks: what a hook is told, and what it may answer.

def register(self, reg):
    reg.hook("prePrompt", self.check)

def check(self, call: HookInvocation) -> HookAnswer:
    return Refuse("no card numbers, please") if CARD.search(call.text) else None
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from beige.messages.tools import HookName

HOOKS: tuple[HookName, ...] = get_args(HookName)


@dataclass(frozen=True)
class HookInvocation:
    """One prompt, one answer, or one change of model of an agent whose configuration names the plugin."""

    hook: HookName
    agent: str
    session: str
    """Empty for a client that keeps its conversation itself (`/api/chat/stream`)."""
    channel: str
    text: str
    """prePrompt: what the user asked, as the hooks before this one left it. postResponse: the answer's text,
    a model's words: untrusted. modelSwitched: empty."""
    model: str
    """`provider/model`. prePrompt: the one that is asked first. postResponse: the one that answered.
    modelSwitched: the one that answers now."""
    sender: str = ""
    """Who asked, as the channel told: a person in a chat. Empty where nobody else is told apart."""
    previous_model: str = ""
    """modelSwitched: the one that should have answered."""
    reason: str = ""
    """modelSwitched: why it didn't, in words."""
    config: dict[str, Any] = field(default_factory=dict)
    """`plugins.<name>.config` with `agents.<agent>.pluginConfigs.<name>` merged over it."""


@dataclass(frozen=True)
class Replace:
    """This text goes on in place of the other: at most 512 Ki characters and 900 KiB, a prompt not empty."""

    text: str


@dataclass(frozen=True)
class Refuse:
    """The prompt reaches no model, or the answer no user, and the turn ends."""

    reason: str
    """Shown to the user and written to the audit log, cut after 500 characters: name no secret in it."""


HookAnswer = Replace | Refuse | None
"""None: unchanged. Of modelSwitched, and of a hook that only observes, nothing is made of it."""
HookHandler = Callable[[HookInvocation], Awaitable[HookAnswer] | HookAnswer]
"""`async def` runs on the plugin's event loop and must not block; `def` runs in a thread. What it raises is a
failure, which `onFailure` in the agent's configuration decides about."""
