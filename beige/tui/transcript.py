"""The conversation on the screen: events in, blocks out, in the order things happened."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from textual.containers import VerticalScroll
from textual.widget import Widget

from beige.tui.answer import Answer
from beige.tui.blocks import Note, Said, Thinking, ToolCall
from beige.tui.events import TurnEvent

MOST_BLOCKS = 200
"""Older ones leave the screen; the session's file keeps them."""


def merged(events: Sequence[TurnEvent]) -> list[TurnEvent]:
    """The same with neighbours that go on with one text in one piece: a fast model sends many."""
    found: list[TurnEvent] = []
    for event in events:
        last = found[-1] if found else None
        grows = event.kind in ("text_delta", "thinking_delta", "tool_output")
        if last and grows and (last.kind, last.tool_id) == (event.kind, event.tool_id):
            found[-1] = msgspec.structs.replace(last, text=last.text + event.text)
        else:
            found.append(event)
    return found


class Transcript(VerticalScroll):
    """Follows its end until the reader scrolls up."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.verbose, self.streaming = False, True
        self._answer: Answer | None = None
        self._thinking: Thinking | None = None
        self._held = ""
        """Text of an answer that is shown only when it is complete."""
        self._tools: dict[str, ToolCall] = {}

    def on_mount(self) -> None:
        self.anchor()

    async def clear(self) -> None:
        self._end_message()
        self._tools.clear()
        await self.remove_children()
        self.anchor()

    async def note(self, text: str, kind: str = "notice") -> None:
        await self._add(Note(text, kind))

    async def show(self, events: Sequence[TurnEvent]) -> None:
        with self.app.batch_update():
            for event in merged(events):
                await self._show(event)

    async def _show(self, event: TurnEvent) -> None:
        match event.kind:
            case "prompt":
                self._end_message()
                await self._add(Said(event.text))
            case "text_delta":
                await self._say(event.text)
            case "thinking_delta":
                await self._think(event.text)
            case "tool_start" | "tool_output" | "tool_end":
                await self._tool(event)
            case "message_end":
                await self._flush()
                self._end_message()
            case "model_fallback":
                self._void()
                await self.note(event.text)
            case "compaction":
                await self.note(f"Earlier turns were summarised: {event.text}")
            case "gone":
                await self.note(
                    "some of what happened is not shown: the gateway no longer has it; /resume does"
                )
            case "notice":
                await self.note(event.text)

    async def _say(self, text: str) -> None:
        self._thinking = None
        if not self.streaming:
            self._held += text
            return
        if self._answer is None:
            self._answer = Answer()
            await self._add(self._answer)
        await self._answer.add(text)

    async def _flush(self) -> None:
        if self._held:
            held, self._held, self._answer = self._held, "", Answer()
            await self._add(self._answer)
            await self._answer.add(held)

    async def _think(self, text: str) -> None:
        if self._thinking is None:
            self._thinking = Thinking()
            await self._add(self._thinking)
        self._thinking.add(text)

    async def _tool(self, event: TurnEvent) -> None:
        call = self._tools.get(event.tool_id)
        if call is None:
            await self._flush()
            self._end_message()
            call = self._tools[event.tool_id] = ToolCall(event, folded=not self.verbose)
            await self._add(call)
        if event.kind == "tool_output":
            call.add(event.text)
        elif event.kind == "tool_end":
            call.end(event)
            del self._tools[event.tool_id]

    def _void(self) -> None:
        """The answer that was under way is replaced by the next one."""
        self._held = ""
        if self._answer is not None:
            self._answer.add_class("void")
        self._end_message()

    def _end_message(self) -> None:
        self._answer = self._thinking = None

    async def end_turn(self, why: str) -> None:
        """What is still open is over: `why`."""
        await self._flush()
        self._end_message()
        for call in self._tools.values():
            call.broken(why)
        self._tools.clear()

    def unfold(self, verbose: bool) -> None:
        self.verbose = verbose
        for call in self._tools.values():
            call.collapsed = not verbose

    def tick(self) -> None:
        for call in self._tools.values():
            call.tick()

    async def _add(self, block: Widget) -> None:
        await self.mount(block)
        if len(self.children) > MOST_BLOCKS:
            await self.children[0].remove()
