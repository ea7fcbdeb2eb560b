"""The layers of session settings, merged; and what of them an agent may have."""

import msgspec
import pytest

from beige.config import AgentConfig
from beige.errors import Malformed
from beige.messages.session_settings import NAMES, SessionSettings, Setting, SettingsRequest
from services.llm.settings.layers import arranged, changed, check, resolve

A, B = {"provider": "a", "model": "big", "thinkingLevel": "low"}, {"provider": "b", "model": "x/small"}
AGENT = AgentConfig.model_validate(
    {"model": A, "fallbackModels": [B], "tools": (), "sandbox": {"image": "x"}}, strict=False
)
NOTHING = SessionSettings()


def test_without_a_word_the_configuration_holds():
    resolved = resolve(AGENT, NOTHING, NOTHING)
    assert resolved.settings == {
        "verbose": Setting(False, "system"),
        "streaming": Setting(True, "system"),
        "model": Setting("a/big", "system"),
        "thinkingLevel": Setting("low", "system"),
    }
    assert resolved.notices == []
    assert arranged(AGENT, resolved) == AGENT


@pytest.mark.parametrize(
    ("channel", "session", "value", "layer"),
    [
        (None, None, False, "system"),
        (True, None, True, "channel"),
        (True, False, False, "session"),
        (None, True, True, "session"),
        (False, True, True, "session"),
    ],
)
def test_the_sessions_word_goes_before_the_channels_and_that_before_the_systems(
    channel, session, value, layer
):
    resolved = resolve(AGENT, SessionSettings(verbose=channel), SessionSettings(verbose=session))
    assert resolved.settings["verbose"] == Setting(value, layer)


def test_the_chosen_model_is_asked_first_and_the_others_stay_as_fallbacks():
    found = arranged(AGENT, resolve(AGENT, NOTHING, SessionSettings(model="b/x/small")))
    assert [ref.model for ref in (found.model, *found.fallback_models)] == ["x/small", "big"]
    assert [ref.thinking_level for ref in (found.model, *found.fallback_models)] == ["off", "low"]


def test_a_thinking_level_holds_for_every_model_and_the_default_is_the_chosen_models_own():
    layer = SessionSettings(model="b/x/small")
    assert resolve(AGENT, NOTHING, layer).settings["thinkingLevel"] == Setting("off", "system")
    found = arranged(AGENT, resolve(AGENT, SessionSettings(thinking_level="high"), NOTHING))
    assert [ref.thinking_level for ref in (found.model, *found.fallback_models)] == ["high", "high"]


@pytest.mark.parametrize("model", ["a/other", "big", "x/small", "a/big ", "A/BIG", "c/big"])
def test_only_the_agents_own_models_can_be_chosen(model):
    with pytest.raises(Malformed, match="a/big, b/x/small"):
        check(AGENT, SessionSettings(model=model))


def test_a_model_that_is_gone_is_passed_over_and_told():
    resolved = resolve(AGENT, SessionSettings(model="b/x/small"), SessionSettings(model="a/retired"))
    assert resolved.settings["model"] == Setting("b/x/small", "channel")
    assert resolved.notices == ["model 'a/retired' is not one of the agent's models any more: passed over"]


def test_unset_comes_before_set_and_the_rest_stays():
    old = SessionSettings(verbose=True, model="a/big", thinking_level="high")
    new = changed(old, SessionSettings(thinking_level="low"), ["verbose", "thinkingLevel"])
    assert new == SessionSettings(model="a/big", thinking_level="low")
    assert changed(old, NOTHING, list(NAMES)) == NOTHING


@pytest.mark.parametrize(
    "body",
    [
        {"set": {"verbos": True}},
        {"set": {"verbose": "yes"}},
        {"set": {"verbose": 1}},
        {"set": {"thinkingLevel": "extreme"}},
        {"set": {"thinking_level": "high"}},
        {"set": {"model": ""}},
        {"unset": ["verbos"]},
        {"unset": ["verbose"] * 17},
    ],
    ids=str,
)
def test_wrong_names_and_values_are_refused(body):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=SettingsRequest)
