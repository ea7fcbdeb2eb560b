"""What is remembered of checked messages: per agent, as what they passed, and bounded."""

from services.llm.hooks.passed import Passed


def test_a_text_is_known_as_what_it_passed_and_for_its_agent_alone():
    passed = Passed()
    passed.keep("a", "mine", "mine")
    passed.keep("a", "swap", "swapped")
    assert (passed.get("a", "mine"), passed.get("a", "swap")) == ("mine", "swapped")
    assert passed.get("b", "mine") is passed.get("a", "other") is None


def test_the_least_used_are_forgotten():
    passed = Passed(most=2)
    for text in ("one", "two"):
        passed.keep("a", text, text)
    passed.get("a", "one")
    passed.keep("a", "three", "three")
    assert [passed.get("a", text) for text in ("one", "two", "three")] == ["one", None, "three"]


def test_replaced_texts_are_bounded_together():
    passed = Passed(most_characters=10)
    passed.keep("a", "one", "123456")
    passed.keep("a", "one", "12345")
    passed.keep("a", "two", "12345")
    assert [passed.get("a", text) for text in ("one", "two")] == ["12345", "12345"]
    passed.keep("a", "three", "1")
    assert [passed.get("a", text) for text in ("one", "two", "three")] == [None, "12345", "1"]
    passed.keep("a", "long", "x" * 11)
    assert passed.get("a", "long") is None
