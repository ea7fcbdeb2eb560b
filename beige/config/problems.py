"""What is wrong with a configuration, in words: one line per problem, all of them at once.

A line names the place in the file (`agents.travel.model.provider`), what is wrong, what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from beige.errors import ConfigError

Location = tuple[str | int, ...]
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$-]+\Z")


@dataclass(frozen=True)
class Problem:
    location: Location
    problem: str
    allowed: str = ""

    def __str__(self) -> str:
        place = dotted(self.location)
        text = f"{place}: {self.problem}" if place else self.problem
        return f"{text}; {self.allowed}" if self.allowed else text


class ConfigProblems(ConfigError):
    """Every problem found in one file; `str()` is one line per problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("", "\n".join(str(problem) for problem in self.problems))
        self.path = dotted(problems[0].location)


def dotted(location: Location) -> str:
    """`("agents", "a b", "tools", 0)` as `agents["a b"].tools[0]`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.match(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def suggest(word: str, choices: Iterable[str], *, kind: str = "") -> str:
    """`did you mean "travel"? allowed: home, travel`, as far as there is something to say."""
    known = sorted(choices)
    if not known:
        return f"no {kind} is configured" if kind else "nothing is allowed here"
    lowered = {choice.lower(): choice for choice in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    hint = f'did you mean "{lowered[near[0]]}"? ' if near else ""
    return f"{hint}allowed: {', '.join(known)}"
