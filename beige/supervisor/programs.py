"""The table of processes: what runs, in which order, how often, and as which bus users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from beige.supervisor.launch import MODULES

BROKER = "broker"
CLI_USER = "cli/0"


class Scale(Protocol):
    """`beige.config.ScaleConfig`, as far as it matters here."""

    @property
    def llm(self) -> int: ...
    @property
    def tools(self) -> int: ...


@dataclass(frozen=True)
class Program:
    """One kind of process."""

    name: str
    count: int = 1

    @property
    def processes(self) -> tuple[str, ...]:
        """Names of its processes, which are also the names of their log files."""
        return (self.name,) if self.count == 1 else tuple(f"{self.name}-{n}" for n in range(self.count))

    @property
    def users(self) -> tuple[str, ...]:
        """Bus users of its processes; the broker is the bus and needs none."""
        return () if self.name == BROKER else tuple(f"{self.name}/{n}" for n in range(self.count))


def programs(scale: Scale, without: frozenset[str] = frozenset()) -> list[Program]:
    """Every program that is not switched off, in the order in which they start (they stop in the
    reverse one)."""
    counts = {"llm": scale.llm, "tools": scale.tools}
    return [Program(name, counts.get(name, 1)) for name in MODULES if name not in without]


def bus_users(scale: Scale, without: frozenset[str] = frozenset()) -> list[str]:
    """Everybody who gets a bus secret: the processes and the operator's command line."""
    return [user for program in programs(scale, without) for user in program.users] + [CLI_USER]
