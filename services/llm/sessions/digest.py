"""Decides what one line says about a session: folds the lines of its file into a `SessionInfo`. No I/O.

Only what a list shows is decoded, and only what was appended since is read: sessions grow large.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec import Struct

from beige import money
from beige.messages.llm import SessionInfo
from services.llm.conversation import FORMAT

TITLE_LIMIT, MODEL_LIMIT = 80, 100
"""Characters: a thousand sessions must fit into one answer."""


class Line(Struct):
    """The fields of any entry that matter here; the others are passed over."""

    type: str
    ts: str = ""
    v: int = 0
    id: str = ""
    agent: str = ""
    forked_from: str = ""
    text: str = ""
    model: str = ""
    outcome: str = ""
    usage: dict[str, int] = {}
    cost_nano: int | None = None


_decode = msgspec.json.Decoder(Line).decode


class Digest:
    """What is known of a session after some of its lines."""

    def __init__(self, agent: str, session: str) -> None:
        self.info = SessionInfo(session=session, agent=agent, created="", updated="", prompts=0, entries=0)
        self.unfinished = False
        """The last prompt's turn has no end."""
        self._usage: Counter[str] = Counter()
        self._cost_nano: int | None = 0

    def add(self, raw: bytes) -> bool:
        """One line without its newline. False, and nothing is changed, if it can't be read: a torn end
        if nothing follows, damage if something does."""
        try:
            line = _decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return False
        if not self.info.entries:
            self._header(line)
        self.info.entries += 1
        self.info.updated = line.ts or self.info.updated
        self._fold(line)
        return True

    def damage(self, problem: str) -> None:
        self.info.problem = self.info.problem or problem

    def _header(self, line: Line) -> None:
        info = self.info
        info.created, info.forked_from = line.ts, line.forked_from
        if (line.type, line.agent, line.id) != ("session", info.agent, info.session):
            self.damage("its file is not that of this session")
        elif line.v > FORMAT:
            self.damage(f"its file has format {line.v}, newer than {FORMAT}")

    def _fold(self, line: Line) -> None:
        info = self.info
        match line.type:
            case "prompt":
                info.prompts += 1
                self.unfinished = True
                info.title = info.title or " ".join(line.text[: 4 * TITLE_LIMIT].split())[:TITLE_LIMIT]
            case "assistant":
                info.model = line.model[:MODEL_LIMIT]
                info.context_tokens = money.tokens(line.usage) or info.context_tokens
                self._count(line)
            case "compaction":
                info.context_tokens = 0
                self._count(line)
            case "turn_end":
                self.unfinished = False
                info.outcome = line.outcome

    def _count(self, line: Line) -> None:
        self._usage.update(line.usage)
        self.info.usage = dict(self._usage)
        self._cost_nano = money.total(self._cost_nano, line.cost_nano)
        self.info.cost = money.usd(self._cost_nano)
