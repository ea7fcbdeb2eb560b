"""What a provider's server can't do: fill the memory, or lead the key elsewhere. Real SDKs, real HTTP."""

import asyncio
from contextlib import aclosing

import pytest

from services.llm.conversation import Prompt
from services.llm.providers.anthropic_messages import AnthropicMessages
from services.llm.providers.base import ModelRequest
from services.llm.providers.bounds import ANSWER_LIMIT, EVENT_LIMIT
from services.llm.providers.failures import ModelError
from services.llm.providers.openai_completions import OpenAICompletions
from services.llm.providers.openai_responses import OpenAIResponses
from services.llm.tools import SPECS
from tests.simulator.replies import Refusal, Say, reply
from tests.simulator.server import Simulator

KEY = "sk-proj-0123456789abcdefghijklmnop"
APIS = {
    "anthropic-messages": lambda url: AnthropicMessages("p", api_key=KEY, base_url=url),
    "openai-completions": lambda url: OpenAICompletions("p", api_key=KEY, base_url=f"{url}/v1"),
    "openai-responses": lambda url: OpenAIResponses("p", api_key=KEY, base_url=f"{url}/v1"),
}
api = pytest.mark.parametrize("api", APIS)


def failure(simulator, api):
    async def run():
        provider = APIS[api](simulator.url)
        try:
            request = ModelRequest(model="m", system="s", messages=(Prompt(text="hello"),), tools=SPECS)
            with pytest.raises(ModelError) as raised:
                async with aclosing(provider.stream(request)) as events:
                    async for _ in events:
                        pass
            return raised.value
        finally:
            await provider.close()

    return asyncio.run(run())


@api
@pytest.mark.parametrize("status", [200, 400, 503])
@pytest.mark.parametrize("text", ["x", "x\n"], ids=["a line", "lines"])
def test_an_endless_event_is_not_read_to_its_end(simulator, api, status, text):
    simulator.answer(Refusal(status, body="data: " + text * (2 * EVENT_LIMIT // len(text))))
    error = failure(simulator, api)
    assert error.kind == "bad_response" and "too long" in str(error)


@api
def test_an_endless_answer_is_given_up(simulator, api):
    size = EVENT_LIMIT // 2
    simulator.answer(reply(*[Say("x" * size, pieces=1)] * (ANSWER_LIMIT // size + 1)))
    error = failure(simulator, api)
    assert error.kind == "bad_response" and "too long" in str(error)


@api
@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_is_not_followed_with_the_key(simulator, api, status):
    with Simulator() as elsewhere:
        simulator.answer(Refusal(status, body="", headers={"location": f"{elsewhere.url}/v1/messages"}))
        assert failure(simulator, api).kind == "bad_request"
        assert elsewhere.requests == []
