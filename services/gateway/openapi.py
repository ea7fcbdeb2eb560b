"""The OpenAPI document, made from the endpoints and their types. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from beige.config.models import NAME_PATTERN
from services.gateway.api import SESSION_PATTERN, Endpoint
from services.gateway.errors import ErrorBody

REF = "#/components/schemas/{name}"
PARAMETERS = {"agent": NAME_PATTERN, "session": SESSION_PATTERN}
STREAMS = ("text/event-stream", "application/x-ndjson")
MEANING = {
    400: "malformed: the message names what is wrong",
    401: "no token, or one that is wrong, revoked or expired",
    403: "the token is not for this, or policy says no",
    404: "no such agent, session, file or path",
    408: "the request took too long to arrive",
    409: "cancelled, or not possible now",
    410: "gone: what was asked for is no longer kept",
    413: "the body is too big",
    414: "the URL is too long",
    415: "the body is not application/json",
    421: "the API does not answer to this Host",
    422: "it was tried and could not be done",
    431: "the head is too big",
    502: "a process died; it may have been done",
    503: "a process is not there, or has too much to do; try again",
    504: "no answer in time; it may have been done",
}
ALWAYS = (400, 401, 403, 408, 413, 414, 421, 431)
BUS = (404, 409, 422, 502, 503, 504)


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    types = [kind for e in endpoints for kind in (e.body, e.query, e.reply, e.stream) if kind is not None]
    _, components = msgspec.json.schema_components([*types, ErrorBody], ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    security = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "beige", "version": version, "description": "Agents that do real work, governed."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": security},
    }


def _operation(endpoint: Endpoint, components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_"),
        "summary": endpoint.summary,
        "tags": list(endpoint.tags),
        "parameters": _parameters(endpoint, components),
        "responses": _responses(endpoint),
    }
    if endpoint.scopes:
        operation["description"] = f"Scope: {' or '.join(endpoint.scopes)}."
    if endpoint.public:
        operation["security"] = []
    if endpoint.body is not None:
        content = {"application/json": {"schema": _schema(endpoint.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    found = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": PARAMETERS[name]},
        }
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    query = components[endpoint.query.__name__]
    for name, schema in query.get("properties", {}).items():
        required = name in query.get("required", [])
        found.append({"name": name, "in": "query", "required": required, "schema": schema})
    for name, text in endpoint.headers.items():
        found.append({"name": name, "in": "header", "required": False, "description": text,
                      "schema": {"type": "string"}})  # fmt: skip
    return found


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.reply is not None:
        content["application/json"] = {"schema": _schema(endpoint.reply)}
    if endpoint.stream is not None:
        content |= {kind: {"schema": {"type": "string"}} for kind in STREAMS}
    found = {str(endpoint.status): {"description": "done", "content": content}}
    error = {"application/json": {"schema": _schema(ErrorBody)}}
    bus = () if endpoint.public else BUS
    more = {415} if endpoint.body is not None else set()
    for status in sorted({*ALWAYS, *bus, *more, *endpoint.errors}):
        found[str(status)] = {"description": MEANING[status], "content": error}
    return found


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return schema
