"""The endpoints under `/v1`, as OpenAI's clients call them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from beige.sessions import check_id
from services.gateway.access import check_scope
from services.gateway.api import Call, Endpoint
from services.gateway.openai.chat import Completion
from services.gateway.openai.errors import Refused
from services.gateway.openai.requests import Asked, of_chat, of_responses
from services.gateway.openai.responses import Reply
from services.gateway.openai.stream import Stream, headers
from services.gateway.openai.wire import Answer

SESSION_HEADER = "x-beige-session"


async def models(call: Call) -> dict[str, Any]:
    """The agents this token is for."""
    names = [name for name in call.gateway.config.agents if call.token.reaches(name)]
    return {"object": "list", "data": [_model(call, name) for name in names]}


async def model(call: Call) -> dict[str, Any]:
    return _model(call, _agent(call, call.request.path_params["model"]))


async def chat(call: Call) -> Response:
    asked = of_chat(call.body)
    return await _answer(call, asked, Completion(asked.agent, include_usage=asked.include_usage))


async def responses(call: Call) -> Response:
    asked = of_responses(call.body)
    return await _answer(call, asked, Reply(asked))


async def _answer(call: Call, asked: Asked, answer: Answer) -> Response:
    call = replace(call, agent=_agent(call, asked.agent), session=_session(call))
    turns = call.gateway.openai
    turn = await turns.start(call, asked, answer.id)
    streaming = False
    try:
        if asked.stream:
            # Until something has happened, an error is told by the response's status.
            await call.while_connected(turn.job.more(0))
            if turn.job.error is not None:
                raise turn.job.error
            streaming = True
            return Stream(call, turn, answer)
        result = await call.while_connected(turn.job.ended())
        await turns.delivered(turn, result.text)
        return Response(answer.whole(result), media_type="application/json", headers=headers(turn))
    finally:
        if not streaming:
            turns.left(turn)


def _agent(call: Call, name: str) -> str:
    """Refused (404) in the same words for one that isn't there and one the token is not for: which agents
    there are is not for everybody (`tests/attacks/test_openai_sessions.py`)."""
    check_scope(call.token, ("prompt",))
    if name not in call.gateway.config.agents or not call.token.reaches(name):
        text = f"the model {name[:64]!r} does not exist, or this token is not for it: /v1/models lists them"
        raise Refused(text, "model", "model_not_found", 404)
    return name


def _session(call: Call) -> str:
    name = call.request.headers.get(SESSION_HEADER, "")
    return check_id(name) if name else ""


def _model(call: Call, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": call.gateway.started, "owned_by": "beige"}


def _post(path: str, summary: str, handle: Callable[[Call], Awaitable[Any]]) -> Endpoint:
    return Endpoint("POST", path, summary, handle, ("prompt",), body=dict[str, Any], tags=("openai",))


ENDPOINTS = (
    Endpoint("GET", "/v1/models", "The agents this token is for.", models, tags=("openai",)),
    Endpoint("GET", "/v1/models/{model}", "One of them.", model, ("prompt",), tags=("openai",)),
    _post("/v1/chat/completions", "A turn, as a chat completion.", chat),
    _post("/v1/responses", "A turn, as a response.", responses),
)
"""They are not in our OpenAPI document: OpenAI's own describes them."""
