"""Opens the configured providers, importing only the SDKs they need (each takes a second or two)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module

from beige.config import ProviderConfig
from beige.paths import Home
from services.llm.providers.base import Provider


def open_providers(home: Home, configured: Mapping[str, ProviderConfig]) -> dict[str, Provider]:
    """By name. Blocks while SDKs are imported: call it before serving. ConfigError for a bad script."""
    for library in ("httpx", "httpx2"):  # they log each URL, and a baseUrl may hold a token
        logging.getLogger(library).setLevel(logging.WARNING)
    return {name: _open(home, name, provider) for name, provider in configured.items()}


def _open(home: Home, name: str, provider: ProviderConfig) -> Provider:
    if provider.api == "scripted":
        from services.llm.providers.scripted import Scripted

        return Scripted(home.config.parent / (provider.script or ""))
    module, class_name = _SDKS[provider.api]
    opened: Provider = getattr(import_module(module), class_name)(
        name,
        api_key=provider.api_key,
        base_url=provider.base_url,
        headers=provider.headers,
        timeout_s=provider.timeout_s,
    )
    return opened


_SDKS = {
    "anthropic-messages": ("services.llm.providers.anthropic_messages", "AnthropicMessages"),
    "openai-responses": ("services.llm.providers.openai_responses", "OpenAIResponses"),
    "openai-completions": ("services.llm.providers.openai_completions", "OpenAICompletions"),
}
