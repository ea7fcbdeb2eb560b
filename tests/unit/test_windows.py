"""Context windows by name, and what the configuration says instead."""

import pytest

from beige.config import ModelRef
from beige.windows import limits


def ref(model, **more):
    return ModelRef.model_validate({"provider": "p", "model": model, **more})


@pytest.mark.parametrize(
    ("model", "window", "threshold"),
    [
        ("claude-haiku-4-5", 200_000, 183_616),
        ("anthropic/claude-opus-4.6", 200_000, 183_616),
        ("gpt-5-mini", 272_000, 255_616),
        ("gpt-4.1-nano", 1_047_576, 1_031_192),
        ("gpt-4o", 128_000, 111_616),
        ("gpt-4", 8_192, 4_096),
        ("gpt-3.5-turbo", 16_385, 8_192),
        ("o3-mini", 200_000, 183_616),
        ("o3", 200_000, 183_616),
        ("glm-5", 128_000, 111_616),
        ("qwen3:8b", 128_000, 111_616),
    ],
)
def test_windows_are_known_by_name(model, window, threshold):
    found = limits(ref(model))
    assert (found.window, found.threshold) == (window, threshold)


def test_the_configuration_goes_before_the_name():
    found = limits(ref("claude-haiku-4-5", contextWindow=1_000_000))
    assert (found.window, found.threshold, found.keep) == (1_000_000, 983_616, 20_000)
    found = limits(ref("glm-5", contextWindow=32_000, compactionThreshold=10_000))
    assert (found.window, found.threshold, found.keep) == (32_000, 10_000, 2000)
