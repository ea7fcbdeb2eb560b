"""What a provider's server can't do: fill the memory, or lead the key elsewhere. Real SDKs, real HTTP."""

import pytest

from services.llm.providers.bounds import ANSWER_LIMIT, EVENT_LIMIT
from services.llm.providers.failures import ModelError
from tests.simulator.replies import Refusal, Say, reply
from tests.simulator.server import Simulator
from tests.unit.llm.providers.asking import OPEN, answered

api = pytest.mark.parametrize("api", OPEN)


def failure(simulator, api):
    with pytest.raises(ModelError) as raised:
        answered(OPEN[api](simulator.url))
    return raised.value


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
