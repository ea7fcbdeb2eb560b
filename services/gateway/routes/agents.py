"""Endpoints about the configured agents."""

from __future__ import annotations

from beige.windows import limits
from services.gateway.api import Call, Endpoint, Shape
from services.gateway.settings import label


class Agent(Shape, omit_defaults=False):
    name: str
    model: str
    """`provider/model`."""
    fallback_models: list[str]
    tools: list[str]
    profile: str


class Agents(Shape, omit_defaults=False):
    agents: list[Agent]


class Model(Shape, omit_defaults=False):
    model: str
    """`provider/model`."""
    primary: bool
    thinking_level: str
    context_window: int
    """Tokens it can hold, as configured or as known by its name."""


class Models(Shape, omit_defaults=False):
    models: list[Model]
    """In the order in which they are tried."""


async def agents(call: Call) -> Agents:
    """Those that the token is for."""
    return Agents([
        Agent(name, label(agent.model), [label(model) for model in agent.fallback_models],
              list(agent.tools), agent.sandbox.profile)
        for name, agent in call.gateway.config.agents.items()
        if call.token.reaches(name)
    ])  # fmt: skip


async def models(call: Call) -> Models:
    agent = call.gateway.config.agents[call.agent]
    refs = (agent.model, *agent.fallback_models)
    return Models(
        [Model(label(ref), n == 0, ref.thinking_level, limits(ref).window) for n, ref in enumerate(refs)]
    )


ENDPOINTS = (
    Endpoint("GET", "/api/agents", "The agents this token is for.", agents, reply=Agents),
    Endpoint(
        "GET", "/api/agents/{agent}/models", "The agent's models.", models, ("read", "prompt"), reply=Models
    ),
)
