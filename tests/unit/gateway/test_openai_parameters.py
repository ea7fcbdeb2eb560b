"""Each parameter of OpenAI's two APIs has a treatment, which the page tells as it is."""

import re
from pathlib import Path

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from services.gateway.openai.errors import Refused
from services.gateway.openai.parameters import PARAMETERS, check

PAGE = (Path(__file__).parents[3] / "docs" / "openai-api.md").read_text()
MEANT = {
    "tools": [{"type": "function"}], "tool_choice": "required", "top_logprobs": 3,
    "moderation": {"model": "m"},
    "functions": [{"name": "f"}], "function_call": {"name": "f"}, "n": 2, "logprobs": True,
    "logit_bias": {"1": 1}, "stop": ["\n"], "response_format": {"type": "json_schema"},
    "modalities": ["text", "audio"], "audio": {"voice": "a"}, "web_search_options": {"a": 1},
    "text.format": {"type": "json_object"}, "background": True, "prompt": {"id": "p"}, "image": {"size": 1},
    "max_tool_calls": 1,
}  # fmt: skip
REFUSED = [(api, p) for p in PARAMETERS if p.treatment == "refused" for api in p.apis]


def body_with(name, value):
    outer, _, inner = name.partition(".")
    return {outer: {inner: value}} if inner else {outer: value}


def rows():
    """(parameter, api) -> treatment, as the page has it."""
    found = {}
    for names, apis, what in re.findall(r"^\| (`.*`) \| ([a-z, ]+) \| (\w+)", PAGE, re.MULTILINE):
        for name in re.findall(r"`([\w.]+)`", names):
            for api in apis.split(", "):
                assert (name, api) not in found, f"{name} stands there twice"
                found[name, api] = what
    return found


def test_the_page_has_the_table_of_the_code():
    assert rows() == {(p.name, api): p.treatment for p in PARAMETERS for api in p.apis}


@pytest.mark.parametrize(
    ("api", "kind"), [("chat", CompletionCreateParamsBase), ("responses", ResponseCreateParamsBase)]
)
def test_each_parameter_the_official_client_knows_has_a_treatment(api, kind):
    ours = {p.name.partition(".")[0] for p in PARAMETERS if api in p.apis}
    left = set(kind.__annotations__) - ours - {"access_programs", "background_options"}
    assert left == set()


@pytest.mark.parametrize(("api", "parameter"), REFUSED, ids=[f"{api}-{p.name}" for api, p in REFUSED])
def test_what_would_change_the_meaning_is_refused_by_its_name(api, parameter):
    with pytest.raises(Refused) as refused:
        check(api, body_with(parameter.name, MEANT[parameter.name]))
    assert (refused.value.param, refused.value.code) == (parameter.name, "unsupported_parameter")
    assert parameter.name in refused.value.message
    for neutral in parameter.neutral:
        check(api, body_with(parameter.name, neutral))


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_unknown_parameter_is_refused(api):
    with pytest.raises(Refused) as refused:
        check(api, {"model": "m", "gramar": "x"})
    assert (refused.value.param, refused.value.code) == ("gramar", "unknown_parameter")


@pytest.mark.parametrize("value", [True, 1.0, "1", [1], {"n": 1}])
def test_neutral_values_are_of_their_own_type(value):
    if value == 1.0 and not isinstance(value, bool):
        check("chat", {"n": value})
        return
    with pytest.raises(Refused):
        check("chat", {"n": value})
