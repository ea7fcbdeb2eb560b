"""Decides what is said in a chat, and what a message asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from beige.errors import BeigeError
from beige.messages.llm import PromptEvent
from beige.plugins.channels import ConversationStatus

LIMIT = 4096
"""Of one message, in UTF-16 units: the strictest reading of "characters"."""
MOST_PIECES = 10
PLAIN = {"link_preview_options": {"is_disabled": True}}
"""With each message. Telegram would fetch a link in an answer, and carry out what its address holds
(`tests/attacks/test_telegram.py`)."""
LINE = 300
COMMANDS = {
    "start": "what this bot does",
    "new": "start a fresh session",
    "status": "show the session and its settings",
    "verbose": "on or off: announce each tool call",
    "v": "short for verbose",
    "stop": "end what is running",
}
WELCOME = "Write, and the agent {agent} answers. Commands:\n{commands}"
BUSY = "Too many messages wait already. Send it again when they are answered."
INTERRUPTED = (
    "I was restarted while I worked on this message:\n\n{text}\n\n"
    "It may have been carried out, in part or whole. Send it again if it is still wanted."
)
STRANGER = "This bot is private. Its operator can add you: your id is {user}."
ONLY_TEXT = "Only text is understood here."


class Command(NamedTuple):
    name: str
    argument: str


def command_of(text: str, bot: str) -> Command | None:
    """None for what is meant for the agent. A command for another bot (`/new@other_bot`) has no name."""
    if not text.startswith("/"):
        return None
    word, _, argument = text[1:].partition(" ")
    name, _, to = word.partition("@")
    mine = not to or to.lower() == bot.lower()
    return Command(name.lower() if mine else "", argument.strip().lower())


def welcome(agent: str) -> str:
    return WELCOME.format(
        agent=agent, commands="\n".join(f"/{name} - {text}" for name, text in COMMANDS.items())
    )


def announcement(event: PromptEvent) -> str:
    """The line for an event; empty if there is nothing to say."""
    if event.kind == "tool_start":
        return f"🔧 {event.tool}: {_arguments(event.args)}"
    if event.kind in ("notice", "model_fallback", "compaction"):
        return f"ℹ️ {_line(event.text)}"  # noqa: RUF001
    return ""


def apology(error: BeigeError) -> str:
    if error.code == "cancelled":
        return "Stopped." if error.executed == "no" else "Stopped. Part of it may have been carried out."
    maybe = " It may have been carried out in part." if error.executed == "maybe" else ""
    return f"⚠️ {_line(str(error), 1000)}{maybe}"


def status(found: ConversationStatus) -> str:
    verbose = found.settings["verbose"]
    lines = [f"Agent: {found.agent}", f"Session: {found.session}"]
    if found.info is not None:
        cost = "" if found.info.cost is None else f", ${found.info.cost:.4f}"
        lines.append(f"Prompts: {found.info.prompts}, {found.info.context_tokens:,} tokens of context{cost}")
        lines.append(f"Model: {found.info.model or 'none yet'}")
    lines.append(f"Verbose: {'on' if verbose.value else 'off'} (from the {verbose.layer})")
    lines.append(f"Running or waiting: {found.busy}")
    return "\n".join(lines)


def pieces(text: str) -> list[str]:
    """`text` in messages that Telegram takes; what is beyond `MOST_PIECES` is left out, and says so."""
    rest, found = text.strip() or "(no answer)", []
    while rest and len(found) < MOST_PIECES:
        at = _cut(rest)
        found.append(rest[:at].rstrip())
        rest = rest[at:].lstrip("\n")
    if rest.strip():
        found.append(f"[{len(rest):,} more characters are in the session's file]")
    return [piece for piece in found if piece]


def _cut(text: str) -> int:
    """Where the first message ends: all of it, else at a line, a word, or the limit."""
    end = _fitting(text)
    if end == len(text):
        return end
    for mark in ("\n", " "):
        at = text.rfind(mark, end // 2, end)
        if at > 0:
            return at + 1
    return end


def _fitting(text: str) -> int:
    """How many characters are at most `LIMIT` units."""
    units = 0
    for index, character in enumerate(text[: LIMIT + 1]):
        units += 2 if ord(character) > 0xFFFF else 1
        if units > LIMIT:
            return index
    return min(len(text), LIMIT)


def _arguments(args: dict[str, Any]) -> str:
    shown: Iterable[str] = (str(value) for value in args.values())
    return _line(" ".join(shown))


def _line(text: str, limit: int = LINE) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]}..."


def sender(user: int, name: str) -> str:
    """Who spoke, for the record: the id, which can't be chosen, then the name, which can."""
    clean = "".join(c for c in name if c.isprintable())
    return f"{user} {clean}"[:100].strip()
