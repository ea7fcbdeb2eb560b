"""Every endpoint of the API, one file per matter."""

from services.gateway.routes import agents, audit, chat, execute, house, prompts, sessions

ENDPOINTS = (
    *house.ENDPOINTS,
    *agents.ENDPOINTS,
    *prompts.ENDPOINTS,
    *sessions.ENDPOINTS,
    *execute.ENDPOINTS,
    *chat.ENDPOINTS,
    *audit.ENDPOINTS,
)
