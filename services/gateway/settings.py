"""What of the configuration may be shown: what is named here, and nothing else. Pure."""

from __future__ import annotations

from typing import Any

from beige.config import AgentConfig, Config, ModelRef, ProviderConfig

_AGENT_SECRETS = frozenset({"pluginConfigs"})
_TOP = frozenset({"llm", "plugins", "agents"})


def public(config: Config) -> dict[str, Any]:
    """The configuration without secret sections (`llm.providers` but for their kind, `plugins.*.config`,
    `agents.*.pluginConfigs`): their values are left out, not hidden, whatever they are called."""
    rest = config.model_dump(mode="json", by_alias=True, exclude=set(_TOP))
    return {
        "llm": {"providers": {name: _provider(p) for name, p in config.llm.providers.items()}},
        "plugins": {name: {"path": plugin.path} for name, plugin in config.plugins.items()},
        "agents": {name: _agent(agent) for name, agent in config.agents.items()},
        **rest,
    }


def _provider(provider: ProviderConfig) -> dict[str, Any]:
    return {"api": provider.api, "concurrency": provider.concurrency, "timeoutS": provider.timeout_s}


def _agent(agent: AgentConfig) -> dict[str, Any]:
    found = agent.model_dump(mode="json", by_alias=True)
    return {key: value for key, value in found.items() if key not in _AGENT_SECRETS}


def label(model: ModelRef) -> str:
    """`provider/model`."""
    return f"{model.provider}/{model.model}"
