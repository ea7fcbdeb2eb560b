"""The JSON Schema of `config.json5`, for editors."""

from __future__ import annotations

from typing import Any

from beige.config.models import IMPLIED_API, Config


def json_schema() -> dict[str, Any]:
    schema = Config.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "beige config.json5"
    providers = schema["$defs"]["LlmConfig"]["properties"]["providers"]
    # A provider whose name says its API may leave `api` out, which a plain map of objects can't say.
    without_api = {**schema["$defs"]["ProviderConfig"], "required": []}
    providers["properties"] = {name: without_api for name in IMPLIED_API}
    return schema
