"""Decides how a turn goes: model events and tool results in, commands out. No I/O.

    PromptAccepted ─► CallModel ─► MessageDone ─► RunTool ─► ToolFinished ─► (next tool | CallModel)
                                        └─► Finish: no tool calls, or max_turns   ModelFailed ─► Fail

An agent's hooks are asked before the first CallModel, Review ─► PromptReviewed; MessageDone tells what they
made of an answer. What they stop ends in Fail.

Before a CallModel, and once after a ModelFailed because of its length, the conversation may be summarised:
Summarise ─► Summarised | SummaryFailed ─► CallModel.

Tool calls of one answer run one after the other, in the model's order: a later one may need what an
earlier one wrote. When an attempt at an answer fails and another model (or the same) is asked
(`MovedOn`), what it said is void: the next answer replaces it. Tool calls are run only of complete
answers, so none is run twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from beige import money
from beige.messages.llm import PromptEvent, PromptResult
from beige.windows import Limits
from services.llm.conversation import (
    AnyEntry,
    Assistant,
    Attempt,
    Hook,
    Message,
    Outcome,
    Prompt,
    StopReason,
    Text,
    ToolCall,
    ToolResult,
    ToolStart,
    TurnEnd,
    close_calls,
    messages,
)
from services.llm.events import (
    CallModel,
    Command,
    Emit,
    Event,
    Fail,
    Finish,
    MessageDone,
    ModelFailed,
    MovedOn,
    Persist,
    PromptAccepted,
    PromptReviewed,
    Review,
    RunTool,
    Summarise,
    Summarised,
    SummaryFailed,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolFinished,
    TurnCancelled,
)
from services.llm.hooks.chain import is_stopped, said, stopped, told
from services.llm.providers.failures import ModelError
from services.llm.tools import cut, people_args
from services.llm.turn.compaction import Shortening, compacted

SHOWN_RESULT = 4 * 1024
"""Characters of a tool's result in `tool_end`."""
ANSWER_LIMIT = 400 * 1024
"""Characters of the answer in the reply, whose body has a limit; the journal has all of it."""
SCRIPTED_NOTICE = "scripted model: a script file speaks here, not a language model"


class Turn:
    """One prompt, from its acceptance to the answer. Commands must be carried out in order."""

    def __init__(self, session: str, entries: Sequence[AnyEntry], *, model: str, max_turns: int,
                 scripted: bool = False, limits: Limits | None = None) -> None:  # fmt: skip
        """`limits`: when older turns are summarised; None: never."""
        self.session, self.model, self.max_turns, self.scripted = session, model, max_turns, scripted
        self._entries = list(entries)
        self._queue: deque[ToolCall] = deque()
        self._partial = ""
        """Text of the answer under way: already shown, not yet in the journal."""
        self._speaking, self._script_speaks = model, scripted
        """The label of the model that was asked last, and whether it is a script."""
        self._script_spoke = scripted
        self._usage: Counter[str] = Counter()
        self._cost_nano: int | None = 0
        """None once an answer's price is not known."""
        self._model_calls = self._tool_calls = 0
        self._last: Assistant | None = None
        self._said = ""
        """The text of the last answer, as its hooks left it."""
        self._shortening = Shortening(limits)
        self._asked: Summarise | None = None
        """A summary is under way."""
        self._too_long: ModelError | None = None
        """Why, if a model said that the conversation is too long."""
        self.over = False

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, for the model."""
        return messages(self._entries)

    def handle(self, event: Event) -> list[Command]:
        """What to do now. After `Finish` or `Fail`, or once cancelled, nothing more happens."""
        if self.over:
            return []
        match event:
            case PromptAccepted(prompt, listened):
                return self._accept(prompt, listened)
            case PromptReviewed(hooks):
                return self._reviewed(hooks)
            case TextDelta(text):
                self._partial += text
                return [Emit(PromptEvent(kind="text_delta", text=text))]
            case ThinkingDelta(text):
                return [Emit(PromptEvent(kind="thinking_delta", text=text))]
            case ToolCallDelta():
                return []
            case MovedOn():
                return self._move_on(event)
            case MessageDone(message, hooks):
                return self._answer(message, hooks)
            case ToolFinished(result):
                return self._tool_finished(result)
            case ModelFailed(error):
                return self._model_failed(error)
            case Summarised(answer):
                return self._summarised(answer)
            case SummaryFailed(error):
                return self._summary_failed(error)
            case TurnCancelled():
                return self._abort("cancelled", "cancelled")

    def _accept(self, prompt: Prompt, listened: bool) -> list[Command]:
        commands: list[Command] = [
            self._persist(prompt, sync=True),
            Emit(PromptEvent(kind="accepted", session=self.session)),
        ]
        if self.scripted:
            commands.append(Emit(PromptEvent(kind="notice", text=SCRIPTED_NOTICE, model=self.model)))
        return [*commands, Review(prompt)] if listened else commands + self._next_answer()

    def _reviewed(self, hooks: Sequence[Hook]) -> list[Command]:
        """What the model gets is on disk before it gets it."""
        commands = self._heard(hooks, sync=True)
        return commands + (self._stop(hooks[-1]) if is_stopped(hooks) else self._next_answer())

    def _heard(self, hooks: Sequence[Hook], sync: bool = False) -> list[Command]:
        commands: list[Command] = [self._persist(hook, sync) for hook in hooks]
        texts = [text for hook in hooks if (text := told(hook))]
        return commands + [Emit(PromptEvent(kind="notice", text=text)) for text in texts]

    def _stop(self, hook: Hook) -> list[Command]:
        """A hook refused, or failed and that counts as one."""
        message, refused = stopped(hook), hook.state == "refused"
        ends = self._abort("refused" if refused else "failed", "error", message)
        return [*ends, Fail(message, refused)]

    def _next_answer(self) -> list[Command]:
        """Ask for it; first for a summary, if the conversation has grown too long."""
        self._asked = self._shortening.due(self._entries)
        return [self._asked] if self._asked else self._call_model()

    def _call_model(self) -> list[Command]:
        self._model_calls += 1
        self._partial, self._speaking, self._script_speaks = "", self.model, self.scripted
        return [CallModel()]

    def _move_on(self, event: MovedOn) -> list[Command]:
        """Nothing of the failed attempt is shown to a model; the journal and the caller know of it."""
        attempt = Attempt(model=event.failed, kind=event.kind, error=event.reason, text=self._partial)
        again = "again with" if event.model == event.failed else "with"
        void = "; the answer begun above is void" if self._partial else ""
        text = f"{event.reason}; trying {again} {event.model}{void}"
        commands: list[Command] = [
            self._persist(attempt),
            Emit(PromptEvent(kind="model_fallback", text=text, model=event.model)),
        ]
        if event.scripted and not self.scripted:
            commands.append(Emit(PromptEvent(kind="notice", text=SCRIPTED_NOTICE, model=event.model)))
        self._partial, self._speaking, self._script_speaks = "", event.model, event.scripted
        return commands

    def _answer(self, message: Assistant, hooks: Sequence[Hook]) -> list[Command]:
        self._last, self._partial, self._said = message, "", said(message.text, hooks)
        self._usage.update(message.usage)
        self._cost_nano = money.total(self._cost_nano, message.cost_nano)
        self._script_spoke |= message.scripted
        blocked = is_stopped(hooks)
        if message.stop_reason not in ("refusal", "context_full") and not blocked:
            self._queue.extend(message.tool_calls)
        commands: list[Command] = [self._persist(message)] if message.content else []
        commands += self._heard(hooks)
        cost = money.usd(message.cost_nano)
        commands.append(
            Emit(PromptEvent(kind="message_end", model=message.model, usage=message.usage, cost=cost))
        )
        if blocked:
            return commands + self._stop(hooks[-1])
        next_step = self._next_tool() if self._queue else self._finish("answered", message.stop_reason)
        return commands + next_step

    def _model_failed(self, error: ModelError) -> list[Command]:
        self._asked = self._shortening.after(self._entries) if error.too_long else None
        if self._asked is None:
            return self._fail(error.message)
        self._too_long = error
        attempt = Attempt(model=self._speaking, kind=error.kind, error=error.message, text=self._partial)
        void = "; the answer begun above is void" if self._partial else ""
        self._partial = ""
        told = PromptEvent(
            kind="model_fallback", text=f"{error.message}; it is shortened{void}", model=self.model
        )
        return [self._persist(attempt), Emit(told), self._asked]

    def _summarised(self, answer: Assistant) -> list[Command]:
        asked = self._asked
        assert asked is not None
        self._asked = self._too_long = None
        self._usage.update(answer.usage)
        self._cost_nano = money.total(self._cost_nano, answer.cost_nano)
        entry, event = compacted(asked, answer)
        return [self._persist(entry, sync=True), Emit(event), *self._call_model()]

    def _summary_failed(self, error: ModelError) -> list[Command]:
        """The turn goes on if it can: the threshold is below what a model takes."""
        self._asked, too_long = None, self._too_long
        self._shortening.failed()
        text = f"the conversation could not be summarised: {error.message}"
        if too_long is not None:
            return self._fail(f"{too_long.message}; {text}")
        return [Emit(PromptEvent(kind="notice", text=f"{text}; it goes on as it is")), *self._call_model()]

    def _fail(self, message: str) -> list[Command]:
        return [*self._abort("failed", "error", message), Fail(message)]

    def _next_tool(self) -> list[Command]:
        if not self._queue:
            return self._continue()
        call = self._queue.popleft()
        self._tool_calls += 1
        shown = PromptEvent(kind="tool_start", tool_id=call.id, tool=call.name, args=people_args(call))
        return [self._persist(ToolStart(tool_id=call.id)), Emit(shown), RunTool(call)]

    def _tool_finished(self, result: ToolResult) -> list[Command]:
        shown = PromptEvent(
            kind="tool_end",
            tool_id=result.tool_id,
            tool=result.tool,
            text=cut(result.text, SHOWN_RESULT),
            exit_code=result.exit_code,
            is_error=result.is_error,
            duration_ms=result.duration_ms,
        )
        return [self._persist(result), Emit(shown), *self._next_tool()]

    def _continue(self) -> list[Command]:
        if self._model_calls < self.max_turns:
            return self._next_answer()
        text = f"stopped after {self.max_turns} model calls (maxTurns) with work left to do"
        return [Emit(PromptEvent(kind="notice", text=text)), *self._finish("max_turns", "max_turns")]

    def _finish(self, outcome: Outcome, stop_reason: str) -> list[Command]:
        ends: list[Command] = [self._persist(result) for result in close_calls(self._entries)]
        ends.append(self._persist(TurnEnd(outcome=outcome)))
        self.over = True
        result = PromptResult(
            session=self.session,
            text=cut(self._said, ANSWER_LIMIT),
            stop_reason=stop_reason,
            model=self._last.model if self._last else self.model,
            scripted=self._script_spoke,
            tool_calls=self._tool_calls,
            usage=dict(self._usage),
            cost=money.usd(self._cost_nano),
        )
        return [*ends, Finish(result)]

    def _abort(self, outcome: Outcome, stop: StopReason, error: str = "") -> list[Command]:
        """End the turn so that the conversation stays valid: what was shown of an unfinished answer
        is kept as text, and every call gets a result."""
        commands: list[Command] = []
        if self._partial.strip():
            content = Assistant(model=self._speaking, content=[Text(self._partial)], stop_reason=stop,
                                scripted=self._script_speaks)  # fmt: skip
            commands.append(self._persist(content))
        commands += [self._persist(result) for result in close_calls(self._entries)]
        commands.append(self._persist(TurnEnd(outcome=outcome, error=error)))
        self.over = True
        return commands

    def _persist(self, entry: AnyEntry, sync: bool = False) -> Persist:
        self._entries.append(entry)
        return Persist(entry, sync)
