"""What `beige doctor` says about hooks: who is shown which agent's prompts, and what a failure does."""

from __future__ import annotations

from collections.abc import Iterator

from beige.cli.finding import Finding
from beige.config import Config, HookConfig

LENIENT = "remove onFailure if it guards something: refuse is the default"


def listeners(config: Config) -> Iterator[Finding]:
    """One line for each hook of each agent, in the order in which they are asked."""
    for name, agent in config.agents.items():
        for entry in agent.hooks:
            yield _listener(name, entry)


def _listener(agent: str, entry: HookConfig) -> Finding:
    decides = [] if entry.observe else [hook for hook in entry.on if hook != "modelSwitched"]
    told = [hook for hook in entry.on if hook not in decides]
    parts = []
    if decides:
        fails = "goes on without it" if entry.on_failure == "continue" else "refuses"
        parts.append(f"decides about {', '.join(decides)} and {fails} when it fails ({entry.timeout_s:g} s)")
    if told:
        parts.append(f"is told of {', '.join(told)}")
    text = f"{agent}: {entry.plugin} {'; '.join(parts)}"
    lenient = bool(decides) and entry.on_failure == "continue"
    return Finding("hooks", "warning" if lenient else "ok", text, LENIENT if lenient else "")
