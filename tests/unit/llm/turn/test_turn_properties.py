"""Whatever happens in its turns, a conversation stays valid for all three APIs and no call runs twice.

The real runner and journal, with a played model, played tools, and an end from outside at any await.
"""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beige.errors import Failed
from beige.windows import Limits
from services.llm.conversation import (
    Assistant,
    Header,
    Prompt,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    TurnEnd,
    decode_entry,
    messages,
)
from services.llm.events import MessageDone, MovedOn, TextDelta
from services.llm.providers.failures import ModelError
from services.llm.sessions.journal import encode_line, read_journal, repairs
from services.llm.tools import SPECS
from services.llm.turn.core import Turn
from services.llm.turn.runner import Runner
from tests.simulator.validity import problem


@dataclass(frozen=True)
class Answer:
    text: str
    calls: int
    stop: str


@dataclass(frozen=True)
class Broken:
    """The model fails after `text` was shown."""

    text: str


@dataclass(frozen=True)
class Replaced:
    """An attempt fails after `text` was shown, and another one is made."""

    text: str


texts = st.sampled_from(["", " ", "\n", "some words", "wörter ✓", "many words " * 300])
stops = st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "context_full"])
answers = (
    st.builds(Answer, texts, st.integers(0, 3), stops) | st.builds(Broken, texts) | st.builds(Replaced, texts)
)
ends = st.sampled_from(["cancel", "kill", "kill torn"])
plays = st.lists(st.tuples(st.lists(answers, min_size=1, max_size=4), st.integers(1, 20), ends), max_size=4)

OUTCOMES = {
    "answered": {"answered", "max_turns"},
    "failed": {"failed"},
    "cancel": {"cancelled", "answered", "max_turns", "failed"},
    "kill": {"interrupted", "answered", "max_turns", "failed"},
}
"""An end from outside that comes when the turn's own is decided, and not yet told, changes nothing."""


LIMITS = Limits(4096, 1024)
"""So small that a conversation with many words is summarised before each call."""


class Stage:
    """Model, tools, journal and caller of the runner; one file over all turns."""

    def __init__(self):
        self.file = encode_line(Header(v=1, id="s", agent="a"))
        self.ran = []
        self.numbers = self.summaries = 0
        self.answers, self.steps, self.end, self.dead = [], 0, "", False

    def entries(self):
        """As a worker opens the session."""
        journal = read_journal(self.file, "a", "s")
        added = repairs(journal, len(self.file))
        self.file = self.file[: journal.keep] + b"".join(encode_line(entry) for entry in added)
        return read_journal(self.file, "a", "s").entries

    async def play(self, answers, steps, end):
        """One turn, ended from outside at its `steps`-th await. How it ended."""
        self.answers, self.steps, self.end, self.dead = list(answers), steps, end, False
        turn = Turn("s", self.entries(), model="p/m", max_turns=3, limits=LIMITS)
        task = asyncio.create_task(
            Runner(turn, self.system, self, self, self, self.send).run(Prompt(text="x"))
        )
        try:
            await task
        except asyncio.CancelledError:
            return end.split()[0]
        except Failed:
            return "failed"
        return "answered"

    async def step(self):
        self.steps -= 1
        if self.steps == 0:
            self.dead = self.end.startswith("kill")
            asyncio.current_task().cancel()
        await asyncio.sleep(0)

    # --- what the runner sees --------------------------------------------------------------------

    def append(self, entry):
        line = encode_line(entry)
        if not self.dead:
            self.file += line
        elif self.end == "kill torn":
            self.file += line[: len(line) // 2]
            self.end = "kill"

    async def sync(self):
        await self.step()

    async def system(self):
        await self.step()
        return "s"

    async def send(self, event):
        await self.step()

    async def run(self, call):
        assert decode_entry(self.file.splitlines()[-1]).tool_id == call.id, "the call was not written down"
        self.ran.append(call.id)
        await self.step()
        return ToolResult(tool_id=call.id, tool=call.name, content=[Text("ok")])

    def shortened(self):
        pass

    def apart(self):
        return self

    async def stream(self, system, conversation, tools=SPECS):
        assert problem(conversation) == ""
        await self.step()
        if not tools:
            self.summaries += 1
            if self.summaries % 3 == 2:
                raise ModelError("overloaded", "p/m: overloaded")
            yield MessageDone(Assistant(model="p/m", content=[Text("in short")], stop_reason="end_turn"))
            return
        while self.answers and isinstance(self.answers[0], Replaced):
            yield TextDelta(self.answers.pop(0).text)
            yield MovedOn("p/m", "stream_cut", "p/m: broke off", "other/m")
            await self.step()
        answer = self.answers.pop(0) if self.answers else Answer("the end", 0, "end_turn")
        if answer.text:
            yield TextDelta(answer.text)
        if isinstance(answer, Broken):
            kind = "context_too_long" if len(answer.text) % 2 else "overloaded"
            raise ModelError(kind, f"p/m: {kind}")
        content = [Thinking("hm", "sig"), *([Text(answer.text)] if answer.text else [])]
        for _ in range(answer.calls):
            self.numbers += 1
            content.append(ToolCall(f"call.{self.numbers}", "exec", {"command": "ls"}))
        yield MessageDone(Assistant(model="p/m", content=content, stop_reason=answer.stop))


async def check(turns):
    stage = Stage()
    for answers, steps, end in turns:
        how = await stage.play(answers, steps, end)
        outcomes = [entry.outcome for entry in stage.entries() if isinstance(entry, TurnEnd)]
        assert outcomes[-1] in OUTCOMES[how]
    assert await stage.play([], 1000, "") == "answered"
    assert len(stage.ran) == len(set(stage.ran)), "a call ran twice"
    assert problem([*messages(stage.entries()), Prompt(text="next")]) == ""
    entries = stage.entries()
    prompts = sum(isinstance(entry, Prompt) for entry in entries)
    assert sum(isinstance(entry, TurnEnd) for entry in entries) == prompts == len(turns) + 1


THREE_CALLS = (Answer("I will", 3, "tool_use"), Answer("done", 0, "end_turn"))


@pytest.mark.parametrize("end", ["cancel", "kill", "kill torn"])
@pytest.mark.parametrize("steps", range(1, 18))
def test_a_turn_with_three_calls_may_be_ended_at_each_of_its_steps(steps, end):
    asyncio.run(check([(THREE_CALLS, steps, end)]))


@given(plays)
@settings(max_examples=200, deadline=None)
def test_any_sequence_of_turns_leaves_a_valid_conversation(turns):
    asyncio.run(check(turns))
