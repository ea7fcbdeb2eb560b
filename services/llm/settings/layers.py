"""Decides what a session's settings are: the layers merged, and what of them an agent may have. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from beige.config import AgentConfig, ModelRef
from beige.errors import Malformed
from beige.messages.session_settings import NAMES, Layer, Name, SessionSettings, Setting

VERBOSE, STREAMING = False, True
"""What holds if nobody says anything else."""


@dataclass
class Resolved:
    settings: dict[str, Setting]
    notices: list[str] = field(default_factory=list)
    """What a layer asked for and the agent can't have."""

    def text(self, name: Name) -> str:
        return str(self.settings[name].value)


def name_of(ref: ModelRef) -> str:
    return f"{ref.provider}/{ref.model}"


def check(agent: AgentConfig, layer: SessionSettings) -> None:
    """Malformed if it asks for a model that is not the agent's own.

    Stops a client from driving an agent with a model its operator did not choose for it
    (`tests/processes/test_settings.py`); policy would not lease it either.
    """
    if layer.model is not None and _find(agent, layer.model) is None:
        own = ", ".join(name_of(ref) for ref in _refs(agent))
        raise Malformed(f"model: {layer.model!r} is not one of the agent's models: {own}")


def changed(old: SessionSettings, new: SessionSettings, unset: list[Name]) -> SessionSettings:
    """The session's layer after a request: `unset` first, then what `new` says."""
    kept = {name: old.get(name) for name in NAMES if name not in unset}
    said = {name: new.get(name) for name in NAMES if new.get(name) is not None}
    values = kept | said
    return SessionSettings(
        verbose=values.get("verbose"),  # type: ignore[arg-type]
        streaming=values.get("streaming"),  # type: ignore[arg-type]
        model=values.get("model"),  # type: ignore[arg-type]
        thinking_level=values.get("thinkingLevel"),  # type: ignore[arg-type]
    )


def resolve(agent: AgentConfig, channel: SessionSettings, session: SessionSettings) -> Resolved:
    """Every setting with its layer. A model that the configuration no longer has is passed over: the
    session goes on with the next layer's, and a notice says so."""
    layers: list[tuple[Layer, SessionSettings]] = [("session", session), ("channel", channel)]
    found = Resolved({})
    for name in NAMES:
        for layer, says in layers:
            value = says.get(name)
            if value is None:
                continue
            if name == "model" and _find(agent, str(value)) is None:
                found.notices.append(
                    f"model {value!r} is not one of the agent's models any more: passed over"
                )
                continue
            found.settings[name] = Setting(value, layer)
            break
        else:
            found.settings[name] = Setting(_system(agent, name, found.settings), "system")
    return found


def arranged(agent: AgentConfig, resolved: Resolved) -> AgentConfig:
    """The agent as its session wants it: the chosen model first, the others behind it as fallbacks."""
    first = _find(agent, resolved.text("model")) or agent.model
    refs = [first, *(ref for ref in _refs(agent) if ref is not first)]
    if resolved.settings["thinkingLevel"].layer != "system":
        level = resolved.settings["thinkingLevel"].value
        refs = [ref.model_copy(update={"thinking_level": level}) for ref in refs]
    return agent.model_copy(update={"model": refs[0], "fallback_models": tuple(refs[1:])})


def _system(agent: AgentConfig, name: Name, above: dict[str, Setting]) -> bool | str:
    if name == "verbose":
        return VERBOSE
    if name == "streaming":
        return STREAMING
    if name == "model":
        return name_of(agent.model)
    chosen = _find(agent, str(above["model"].value)) or agent.model
    return chosen.thinking_level


def _refs(agent: AgentConfig) -> tuple[ModelRef, ...]:
    return (agent.model, *agent.fallback_models)


def _find(agent: AgentConfig, model: str) -> ModelRef | None:
    return next((ref for ref in _refs(agent) if name_of(ref) == model), None)
