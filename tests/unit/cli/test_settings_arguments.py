"""`KEY=VALUE` of `beige sessions settings`."""

import pytest

from beige.cli.session_settings import parse
from beige.errors import Malformed
from beige.messages.session_settings import SessionSettings, SettingsRequest


def test_values_and_what_is_unset() -> None:
    assert parse(
        ["verbose=on", "streaming=False", "model=a/b=c", "thinkingLevel=high"], []
    ) == SettingsRequest(
        set=SessionSettings(verbose=True, streaming=False, model="a/b=c", thinking_level="high")
    )
    assert parse([], ["model", "verbose"]) == SettingsRequest(unset=["model", "verbose"])


@pytest.mark.parametrize(
    ("values", "unset", "told"),
    [
        (["verbose"], [], "KEY=VALUE"),
        (["verbos=on"], [], "keys are verbose, streaming, model, thinkingLevel"),
        (["verbose=maybe"], [], "on or off"),
        (["thinkingLevel=extreme"], [], "off, minimal, low, medium or high"),
        (["model="], [], "length"),
        ([], ["modl"], "keys are"),
    ],
)
def test_a_wrong_one_says_what_would_be_right(values: list[str], unset: list[str], told: str) -> None:
    with pytest.raises(Malformed, match=told):
        parse(values, unset)
