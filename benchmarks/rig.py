"""What every benchmark needs: alternating rounds, rows with targets, and peers in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = Path(__file__).resolve().parent / "out" / "bench.json"
ANSWER_S = 120.0


@dataclass(frozen=True)
class Row:
    """One line of the result. Times are medians over the rounds; `ratio` is the median of the rounds' own
    ratios, so that a noisy moment hits both sides."""

    name: str
    ours_ms: float
    plain_ms: float
    ratio: float
    target: str
    """In words; empty: none, the number is for comparison."""
    ok: bool


@dataclass(frozen=True)
class Fact:
    """A number that has no plain thing beside it."""

    name: str
    value: float
    unit: str
    least: float | None = None
    """The target; None: none."""

    @property
    def ok(self) -> bool:
        return self.least is None or self.value >= self.least


def row(
    name: str, ours: list[float], plain: list[float], *, ratio_limit: float = 0.0, above_limit_ms: float = 0.0
) -> Row:
    """`ratio_limit`: ours/plain must not be more. `above_limit_ms`: ours - plain must not be more."""
    ratio = median(a / b for a, b in zip(ours, plain, strict=True))
    above = median(a - b for a, b in zip(ours, plain, strict=True))
    target, ok = "", True
    if ratio_limit:
        target, ok = f"ratio <= {ratio_limit:g}", ratio <= ratio_limit
    elif above_limit_ms:
        target, ok = f"ours - plain <= {above_limit_ms:g} ms", above <= above_limit_ms
    return Row(name, round(median(ours), 4), round(median(plain), 4), round(ratio, 4), target, ok)


def alternate(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender in each round, in reversed order every second round. One more
    round before that warms up."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        names = list(contenders)
        for name in reversed(names) if number % 2 else names:
            value = contenders[name]()
            if number:
                samples[name].append(value)
    return samples


class Peer:
    """A process running one role of `module`; answers one JSON line per question."""

    def __init__(
        self, role: str, *arguments: str, home: Path | None = None, module: str = "benchmarks.peers"
    ) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | ({"BEIGE_HOME": str(home)} if home else {})
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, role, *arguments],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.greeting = self.wait()

    def ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.wait()

    def wait(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with exit code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def table(rows: Sequence[Row | Fact]) -> str:
    timed = [found for found in rows if isinstance(found, Row)]
    head = f"{'':<44} {'ours ms':>10} {'plain ms':>10} {'ratio':>8}  target"
    lines = [
        f"{r.name:<44} {r.ours_ms:>10.3f} {r.plain_ms:>10.3f} {r.ratio:>8.3f}  "
        + (f"{r.target}  {_verdict(r)}" if r.target else "-")
        for r in timed
    ]
    facts = [
        f"{f.name:<55} {f.value:>10g} {f.unit}" + (f"  {_verdict(f)}" if f.least is not None else "")
        for f in rows
        if isinstance(f, Fact)
    ]
    return "\n".join([head, *lines, *facts])


def _verdict(found: Row | Fact) -> str:
    return "ok" if found.ok else "MISSED"


def write(rows: Sequence[Row | Fact], path: Path = OUT) -> None:
    path.parent.mkdir(exist_ok=True)
    timed = [asdict(found) for found in rows if isinstance(found, Row)]
    facts = [asdict(found) | {"ok": found.ok} for found in rows if isinstance(found, Fact)]
    path.write_text(json.dumps({"rows": timed, "facts": facts}, indent=1) + "\n")
