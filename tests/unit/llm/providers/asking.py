"""Asks a provider with its real SDK, as the tests of every API do."""

import asyncio
from contextlib import aclosing

from services.llm.conversation import Prompt
from services.llm.events import TextDelta
from services.llm.providers.anthropic_messages import AnthropicMessages
from services.llm.providers.base import ModelRequest
from services.llm.providers.openai_completions import OpenAICompletions
from services.llm.providers.openai_responses import OpenAIResponses
from services.llm.tools import SPECS

KEY = "sk-proj-0123456789abcdefghijklmnop"
HELLO = (Prompt(text="hello"),)
OPEN = {
    "anthropic-messages": lambda url: AnthropicMessages("p", api_key=KEY, base_url=url),
    "openai-responses": lambda url: OpenAIResponses("p", api_key=KEY, base_url=f"{url}/v1"),
    "openai-completions": lambda url: OpenAICompletions("p", api_key=KEY, base_url=f"{url}/v1"),
}
"""A provider `p` of each API."""


def request(model="m", messages=HELLO, **options):
    return ModelRequest(model=model, system="be brief", messages=messages, tools=SPECS, **options)


async def events_of(provider, asked=None):
    """All events of one answer."""
    async with aclosing(provider.stream(asked or request())) as events:
        return [event async for event in events]


def answered(provider, asked=None):
    """The same, for a provider that is closed afterwards."""

    async def run():
        try:
            return await events_of(provider, asked)
        finally:
            await provider.close()

    return asyncio.run(run())


def text_of(events, kind=TextDelta):
    return "".join(event.text for event in events if isinstance(event, kind))
