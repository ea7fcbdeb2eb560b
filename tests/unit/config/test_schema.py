"""The JSON Schema says what the loader says."""

from __future__ import annotations

from typing import Any

from beige.config.schema import json_schema


def test_every_key_is_described() -> None:
    schema = json_schema()
    models = {"Config": schema, **schema["$defs"]}
    missing = [
        f"{m}.{k}"
        for m, model in models.items()
        for k, v in model["properties"].items()
        if "description" not in v
    ]
    assert missing == []


def test_nothing_that_grants_power_has_a_default() -> None:
    definitions: dict[str, Any] = json_schema()["$defs"]
    assert {"model", "tools", "sandbox"} <= set(definitions["AgentConfig"]["required"])
    assert "image" in definitions["SandboxConfig"]["required"]


def test_unknown_keys_are_forbidden_and_keys_are_camel_case() -> None:
    schema = json_schema()
    for model in (schema, *schema["$defs"].values()):
        assert model["additionalProperties"] is False
        assert not any("_" in key for key in model["properties"])


def test_a_provider_whose_name_says_its_api_may_leave_it_out() -> None:
    providers = json_schema()["$defs"]["LlmConfig"]["properties"]["providers"]
    assert providers["properties"]["anthropic"]["required"] == []
