"""What a hook's answer means: the table of failures, and who is shown what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.config import HookConfig
from beige.errors import DeadlineExceeded, Denied, Failed, PeerLost, Unavailable
from beige.messages.tools import HookResult
from services.llm.conversation import Assistant, Hook, Prompt, Text, TurnEnd, messages
from services.llm.hooks.chain import heard, raise_stopped, said, stopped, told

FAILURES = [
    Failed("plugin 'guard' failed (ValueError)"),
    DeadlineExceeded("too late", executed="maybe"),
    PeerLost("tools/0 died"),
    Unavailable("no tools process is running"),
    Denied("plugin 'guard' may not listen"),
]


def entry(on_failure="refuse"):
    return HookConfig.model_validate({"plugin": "guard", "on": ("prePrompt",), "onFailure": on_failure})


@pytest.mark.parametrize(
    ("answer", "state", "passed"),
    [
        (HookResult("unchanged"), "unchanged", True),
        (HookResult("replaced", "new"), "replaced", True),
        (HookResult("refused", reason="no"), "refused", False),
        (HookResult("told"), "failed", False),
        *[(error, "failed", False) for error in FAILURES],
    ],
    ids=lambda value: getattr(value, "code", getattr(value, "state", str(value))),
)
@pytest.mark.parametrize("on_failure", ["refuse", "continue"])
def test_only_continue_lets_a_failure_pass_and_nothing_lets_a_refusal(answer, state, passed, on_failure):
    found = heard(entry(on_failure), "prePrompt", answer)
    lenient = state == "failed" and on_failure == "continue"
    assert (found.state, found.passed) == (("skipped", True) if lenient else (state, passed))


def hooks(*states, hook="prePrompt"):
    return [
        Hook(
            plugin=f"p{n}", hook=hook, state=state, text=f"by {n}" if state == "replaced" else "", reason="r"
        )
        for n, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([], "mine"),
        (["unchanged"], "mine"),
        (["replaced", "unchanged"], "by 0"),
        (["replaced", "replaced", "skipped"], "by 1"),
        (["replaced", "refused"], ""),
        (["failed"], ""),
    ],
)
def test_a_text_is_what_the_last_one_made_of_it_and_nothing_once_it_is_stopped(states, text):
    assert said("mine", hooks(*states)) == text


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        pytest.param(["unchanged", "unchanged"], ["mine"], id="passed"),
        pytest.param(["replaced", "unchanged"], ["by 0"], id="replaced"),
        pytest.param(["skipped", "replaced"], ["by 1"], id="done without"),
        pytest.param(["unchanged"], [], id="one has not answered"),
        pytest.param([], [], id="nobody has answered"),
        pytest.param(["replaced", "refused"], [], id="refused"),
        pytest.param(["failed", "unchanged"], [], id="failed"),
        pytest.param(["refused", "unchanged", "unchanged"], [], id="refused and then passed"),
    ],
)
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
def test_a_model_is_shown_a_prompt_only_when_each_hook_has_let_it_pass(states, shown, later):
    entries = [Prompt(text="mine", hooks=["p0", "p1"]), *hooks(*states)]
    if later:
        entries += [TurnEnd(outcome="interrupted"), Prompt(text="next")]
    assert [message.text for message in messages(entries)] == shown + ["next"] * later


def test_no_other_plugins_word_counts():
    foreign = [Hook(plugin="p1", hook="prePrompt", state="unchanged"), *hooks("unchanged", "unchanged")]
    assert messages([Prompt(text="mine", hooks=["p0", "p1"]), *foreign]) == []


def test_a_model_goes_on_from_its_own_words():
    answer = Assistant(model="p/m", content=[Text("own")], stop_reason="end_turn")
    shown = messages([Prompt(text="x"), answer, *hooks("replaced", hook="postResponse")])
    assert [message.text for message in shown] == ["x", "own"]


def test_what_is_said_of_it_names_plugin_and_reason():
    (refused,) = hooks("refused")
    assert stopped(refused) == "plugin 'p0' refused the prompt: r"
    (failed,) = hooks("failed", hook="postResponse")
    assert stopped(failed) == "plugin 'p0' could not check the answer: r; the answer is not shown (onFailure)"
    assert told(hooks("replaced")[0]) == "plugin 'p0' changed the prompt before a model saw it"
    assert told(hooks("skipped")[0]) == "the prompt goes on without plugin 'p0': r"
    assert [told(hook) for hook in hooks("unchanged", "refused", "failed")] == ["", "", ""]


@pytest.mark.parametrize(("state", "kind"), [("refused", Denied), ("failed", Failed)])
def test_a_refusal_is_a_decision_and_a_failure_an_accident(state, kind):
    with pytest.raises(kind):
        raise_stopped(hooks("unchanged", state))
    raise_stopped(hooks("unchanged", "skipped"))


STATES = st.sampled_from(["unchanged", "replaced", "skipped", "refused", "failed"])
TURNS = st.lists(st.tuples(st.integers(0, 3), st.lists(STATES, max_size=3), st.booleans()), max_size=6)
"""Of each turn: how many decide about its prompt, what they answered, and whether the turn was ended."""


@given(TURNS)
def test_wherever_a_file_ends_no_model_is_shown_what_was_not_let_pass(turns):
    entries, owners = [], []
    for number, (deciding, states, ended) in enumerate(turns):
        prompt = Prompt(text=f"{number}", hooks=[f"p{n}" for n in range(deciding)])
        turn = [prompt, *hooks(*states[:deciding]), *([TurnEnd(outcome="interrupted")] * ended)]
        entries += turn
        owners += [number] * len(turn)
    for end in range(len(entries) + 1):
        answered = [(owner, entry) for owner, entry in zip(owners, entries[:end], strict=False)]
        allowed = []
        for owner, entry in answered:
            if isinstance(entry, Prompt):
                own = [e for o, e in answered if o == owner and isinstance(e, Hook)]
                if len(own) == len(entry.hooks) and all(hook.passed for hook in own):
                    allowed.append(said(entry.text, own))
        assert [message.text for message in messages(entries[:end])] == allowed
