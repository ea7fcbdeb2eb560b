"""Decides which model is asked next, after what went wrong before. No I/O.

The rules are the seed's (Model Fallback): primary first, then the fallbacks, in up to 3 passes; a model
leaves the pool while it is cooling down, or after 3 failures in a row in this prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from services.llm.providers.failures import Kind, ModelError

PASSES = 3
MAX_FAILURES = 3
PAUSES_S = (0.0, 0.5, 2.0)
"""Before the first attempt of each pass: an overload needs a moment to clear."""
HOPELESS: frozenset[Kind] = frozenset({
    *("auth", "billing", "bad_request", "context_too_long", "not_leased", "over_budget"),
})  # fmt: skip
"""No retry cures them: the model leaves the pool at once, and no pass is spent on it."""
_MESSAGE_LIMIT = 3000


@dataclass(frozen=True)
class Choice:
    """What to try now."""

    index: int
    """Place in the agent's list of models: 0 is the primary."""
    pause_s: float = 0.0
    """Wait so long first."""


class Pool:
    """The models of one prompt. Failures in a row and hopeless models are remembered over its model
    calls; cooldowns are not: whether one is over is asked each time."""

    def __init__(self, labels: Sequence[str], pauses_s: Sequence[float] = PAUSES_S) -> None:
        self.labels, self.pauses_s = labels, pauses_s
        self._in_a_row = [0] * len(labels)
        self._hopeless: dict[int, ModelError] = {}

    def round(self) -> Round:
        """For one model call: begins with the primary again."""
        return Round(self)

    def usable(self, index: int) -> bool:
        return index not in self._hopeless and self._in_a_row[index] < MAX_FAILURES

    def failed(self, index: int, error: ModelError) -> None:
        if error.kind in HOPELESS:
            self._hopeless[index] = error
        self._in_a_row[index] += 1

    def answered(self, index: int) -> None:
        self._in_a_row[index] = 0

    def shortened(self) -> None:
        """The conversation is shorter now: those it was too long for may be asked again."""
        self._hopeless = {index: error for index, error in self._hopeless.items() if not error.too_long}


class Round:
    """The attempts of one model call."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cooling: set[int] = set()
        self._pass, self._next, self._begun = 0, 0, False
        self.errors: list[ModelError] = []

    def next(self) -> Choice | None:
        """None when nothing is left to try."""
        while self._pass < PASSES:
            for index in range(self._next, len(self._pool.labels)):
                if self._pool.usable(index) and index not in self._cooling:
                    pause_s = 0.0 if self._begun else self._pool.pauses_s[self._pass]
                    self._next, self._begun = index + 1, True
                    return Choice(index, pause_s)
            self._pass, self._next, self._begun = self._pass + 1, 0, False
        return None

    def cooling(self, index: int, error: ModelError) -> None:
        """It may not be called now: out of this round. No failure of its own."""
        self._cooling.add(index)
        self.errors.append(error)

    def failed(self, index: int, error: ModelError, cooling: bool) -> None:
        """An attempt failed; `cooling`: by a rate limit that lasts."""
        self._pool.failed(index, error)
        self.errors.append(error)
        if cooling:
            self._cooling.add(index)

    def answered(self, index: int) -> None:
        self._pool.answered(index)

    def exhausted(self) -> ModelError:
        """Why there is no answer: the one error, or a list of what was tried."""
        if len(self.errors) == 1:
            return self.errors[0]
        if not self.errors:
            return ModelError(
                "exhausted", f"no model is left to try: {', '.join(self._pool.labels)} failed before"
            )
        times = Counter(error.message for error in self.errors)
        tried = "; ".join(f"{text} ({n} times)" if n > 1 else text for text, n in times.items())
        error = ModelError("exhausted", f"no model could answer: {tried}"[:_MESSAGE_LIMIT])
        error.too_long = any(tried.too_long for tried in self.errors)
        return error
