"""Which model is asked next: the seed's multi-pass loop, played."""

import pytest

from services.llm.models.fallback import HOPELESS, PAUSES_S, Pool
from services.llm.providers.failures import ModelError

TRANSIENT = ["overloaded", "connection", "timeout", "stream_cut", "bad_response", "rate_limited"]


def play(pool, outcomes):
    """The models asked in one round. `outcomes`: model to what it does each time, the last for ever:
    a kind of error, `cooling` (refused by policy), `limited` (429 now), `ok`."""
    round_, asked = pool.round(), []
    outcomes = {label: list(outcome) for label, outcome in outcomes.items()}
    while (choice := round_.next()) is not None:
        label = pool.labels[choice.index]
        asked.append(label)
        left = outcomes[label]
        outcome = left.pop(0) if len(left) > 1 else left[0]
        error = ModelError(
            "overloaded" if outcome in ("cooling", "limited") else outcome, f"{label}: {outcome}"
        )
        if outcome == "ok":
            round_.answered(choice.index)
            return asked, None
        if outcome == "cooling":
            round_.cooling(choice.index, error)
        else:
            round_.failed(choice.index, error, cooling=outcome == "limited")
    return asked, round_.exhausted()


CASES = {
    "the first answers": ({"a": ["ok"], "b": ["ok"]}, "a", ""),
    "the second stands in": ({"a": ["overloaded"], "b": ["ok"]}, "ab", ""),
    "the first again on the second pass": ({"a": ["overloaded", "ok"], "b": ["overloaded"]}, "aba", ""),
    "two models, six attempts": ({"a": ["overloaded"], "b": ["stream_cut"]}, "ababab", "(3 times)"),
    "one model, three attempts": ({"a": ["timeout"]}, "aaa", "a: timeout (3 times)"),
    "a cooling model is passed by": ({"a": ["cooling"], "b": ["overloaded", "ok"]}, "abb", ""),
    "all cool down": ({"a": ["cooling"], "b": ["cooling"]}, "ab", "a: cooling; b: cooling"),
    "a limited one is not asked again": (
        {"a": ["limited"], "b": ["overloaded"]},
        "abbb",
        "a: limited; b: ov",
    ),
    "a hopeless one spends no pass": ({"a": ["auth"], "b": ["overloaded", "overloaded", "ok"]}, "abbb", ""),
    "alone and hopeless": ({"a": ["bad_request"]}, "a", "a: bad_request"),
}


@pytest.mark.parametrize(("outcomes", "asked", "said"), CASES.values(), ids=CASES.keys())
def test_models_are_asked_in_the_seeds_order(outcomes, asked, said):
    found, error = play(Pool(list(outcomes)), outcomes)
    assert "".join(found) == asked
    assert said in str(error) if said else error is None


@pytest.mark.parametrize("kind", sorted(HOPELESS))
def test_what_no_retry_cures_is_remembered_for_the_whole_prompt(kind):
    pool = Pool(["a", "b"])
    assert play(pool, {"a": [kind], "b": ["ok"]})[0] == ["a", "b"]
    assert play(pool, {"a": ["ok"], "b": ["ok"]})[0] == ["b"]


@pytest.mark.parametrize("kind", TRANSIENT)
def test_three_failures_in_a_row_take_a_model_out_of_the_prompt(kind):
    pool = Pool(["a", "b"])
    for _ in range(3):
        assert play(pool, {"a": [kind], "b": ["ok"]})[0] == ["a", "b"]
    assert play(pool, {"a": ["ok"], "b": ["ok"]})[0] == ["b"]


def test_an_answer_ends_the_row_and_a_cooldown_is_asked_about_each_time():
    pool = Pool(["a", "b"])
    for outcome in ["overloaded", "overloaded", "ok", "overloaded", "cooling", "cooling", "overloaded"]:
        assert play(pool, {"a": [outcome], "b": ["ok"]})[0][0] == "a"
    assert play(pool, {"a": ["ok"], "b": ["ok"]})[0] == ["a"]


def test_passes_after_the_first_begin_with_a_pause():
    round_, pauses = Pool(["a", "b"]).round(), []
    while (choice := round_.next()) is not None:
        pauses.append(choice.pause_s)
        round_.failed(choice.index, ModelError("overloaded", "x"), cooling=False)
    assert pauses == [PAUSES_S[0], 0.0, PAUSES_S[1], 0.0, PAUSES_S[2], 0.0]


def test_a_prompt_with_no_model_left_says_so():
    pool = Pool(["a"])
    play(pool, {"a": ["auth"]})
    asked, error = play(pool, {"a": ["ok"]})
    assert asked == [] and str(error) == "no model is left to try: a failed before"


def test_the_reason_is_bounded():
    _, error = play(
        Pool([f"{n}" for n in range(50)]), {f"{n}": ["overloaded" + "x" * 500] for n in range(50)}
    )
    assert len(str(error)) <= 3000
