"""Which session a history is, as tables; and that no two histories have one digest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.openai.recognise import MAX_QUOTED, Place, Plan, chain, named, owner, plan, prompt
from services.gateway.openai.requests import Said

ROOT = owner("token", "travel")
P1, P2 = Place("s", 1), Place("s", 2)
CUT = Place("s", 2, cut=True)


def said(text):
    """`u1 a1 u2`: users' and assistants' messages."""
    return tuple(Said("user" if one[0] == "u" else "assistant", one) for one in text.split())


@pytest.mark.parametrize(
    ("history", "known", "place", "quoted", "fresh"),
    [
        ("u1", {}, None, "", "u1"),
        ("u1 u2", {}, None, "", "u1 u2"),
        ("u1 a1 u2", {1: P1}, P1, "", "u2"),
        ("u1 a1 u2 a2 u3", {1: P1, 3: P2}, P2, "", "u3"),
        ("u1 a1 u2x a2 u3", {1: P1}, P1, "u2x a2", "u3"),
        ("u1 a1 u2", {}, None, "u1 a1", "u2"),
        ("u1 a1 u2 u3", {1: P1}, P1, "", "u2 u3"),
        # the answer to u2 was cut: gone on from, with or without what was seen of it; asked again
        ("u1 a1 u2 u3", {1: P1, 2: CUT}, CUT, "", "u3"),
        ("u1 a1 u2", {1: P1, 2: CUT}, P1, "", "u2"),
        ("u1", {0: CUT}, None, "", "u1"),
        ("u1 a1 u2 a2 u3", {1: P1, 2: CUT}, CUT, "", "u3"),
        ("u1 a1 u2 a2 u3 a3 u4", {1: P1, 2: CUT}, CUT, "u3 a3", "u4"),
        ("u1 u2", {1: CUT}, None, "", "u1 u2"),
        ("u1 u2", {0: CUT}, CUT, "", "u2"),
    ],
)
def test_the_longest_beginning_that_is_known_is_gone_on_from(history, known, place, quoted, fresh):
    whole = said(history)
    found = plan(whole, [known.get(number) for number in range(len(whole))])
    assert found == Plan(place, said(quoted), said(fresh))


def test_a_known_history_is_a_prompt_without_an_addition():
    assert prompt(Plan(P1, (), said("u2")), "") == "u2"


def test_what_the_agent_has_not_heard_is_quoted_and_bounded():
    text = prompt(
        Plan(None, (Said("user", "x" * 2 * MAX_QUOTED), Said("assistant", "last")), said("u2")), "Be"
    )
    assert text.startswith("[Instructions of the program")
    assert "assistant: last" in text
    assert text.endswith("u2")
    assert len(text) < MAX_QUOTED + 500


def test_white_space_around_a_message_does_not_count():
    assert chain(ROOT, [Said("user", "a"), Said("assistant", " b\n")]) == chain(
        ROOT, [Said("user", "a "), Said("assistant", "b")]
    )


histories = st.lists(
    st.builds(Said, st.sampled_from(["user", "assistant"]), st.text(max_size=5).map(str.strip)),
    min_size=1,
    max_size=4,
).map(tuple)


@given(histories, histories)
def test_different_histories_have_different_digests(one, other):
    assert (chain(ROOT, one)[-1] == chain(ROOT, other)[-1]) == (one == other)


@given(histories, st.text(max_size=5), st.text(max_size=5))
def test_a_digest_is_of_one_token_and_one_agent(history, token, agent):
    other = owner(token, agent)
    same = (token, agent) == ("token", "travel")
    assert (chain(other, history)[-1] == chain(ROOT, history)[-1]) == same
    assert (named(other, "key", "k") == named(ROOT, "key", "k")) == same


def test_names_of_another_kind_are_other_names():
    assert len({named(ROOT, kind, "x") for kind in ("key", "response", "session")}) == 3
