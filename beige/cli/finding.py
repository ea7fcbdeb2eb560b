"""One line of `beige doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    """What is known about one prerequisite."""

    what: str
    verdict: Verdict
    text: str
    fix: str = ""
