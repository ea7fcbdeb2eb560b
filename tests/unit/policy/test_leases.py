"""Who may call a model now: cooldowns with the seed's numbers, slots first come, first served."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.messages.policy import LeaseReport
from services.policy.leases import MAX_COOLDOWN_S, Cooldowns, Slots, cooldown_s

MODEL, OTHER = ("anthropic", "claude"), ("zai", "glm")
NOW = 1_764_000_000.0


def failed(kind, status=None, retry_after_s=None):
    return LeaseReport("failed", kind, status, retry_after_s)


@pytest.mark.parametrize(
    ("report", "seconds"),
    [
        (LeaseReport("answered"), 0),
        (failed("rate_limited", 429), 300),
        (failed("rate_limited", 429, 7.5), 7.5),
        (failed("rate_limited", 429, 0.0), 0),
        (failed("rate_limited", 200), 60),
        (failed("rate_limited"), 60),
        (failed("rate_limited", None, 5.0), 5),
        (failed("rate_limited", 500), 60),
        (failed("rate_limited", 429, 1e12), MAX_COOLDOWN_S),
        (failed("overloaded", 529, 30.0), 0),
        (failed("overloaded", 503), 0),
        (failed("stream_cut"), 0),
        (failed("timeout", 408), 0),
        (failed("connection"), 0),
        (failed("auth", 401), 0),
        (failed("billing", 429), 0),
        (LeaseReport("answered", "rate_limited", 429, 9.0), 0),
    ],
    ids=str,
)
def test_only_rate_limits_cool_down(report, seconds):
    assert cooldown_s(report) == seconds


def test_a_cooldown_is_the_models_own_and_ends_by_itself():
    cooldowns = Cooldowns({}, NOW)
    assert cooldowns.note(MODEL, failed("rate_limited", 429, 10.0), NOW)
    assert cooldowns.left_s(MODEL, NOW + 4) == 6
    assert cooldowns.left_s((MODEL[0], "other"), NOW) == 0, "a limit of one model is not its provider's"
    assert cooldowns.left_s(MODEL, NOW + 10) == 0
    assert cooldowns.active(NOW + 9) == {MODEL: NOW + 10}
    assert cooldowns.active(NOW + 10) == {}


def test_a_later_report_lengthens_a_cooldown_and_never_shortens_it():
    cooldowns = Cooldowns({}, NOW)
    cooldowns.note(MODEL, failed("rate_limited", 429, 100.0), NOW)
    assert not cooldowns.note(MODEL, failed("rate_limited", 429, 1.0), NOW)
    assert not cooldowns.note(MODEL, LeaseReport("answered"), NOW)
    assert cooldowns.left_s(MODEL, NOW) == 100
    assert cooldowns.note(MODEL, failed("rate_limited", 429, 200.0), NOW)
    assert cooldowns.left_s(MODEL, NOW) == 200


@pytest.mark.parametrize("until", [NOW, NOW - 1, 0.0, NOW + MAX_COOLDOWN_S + 1, float("inf"), float("nan")])
def test_what_is_over_or_impossible_in_the_file_is_dropped(until):
    cooldowns = Cooldowns({MODEL: until, OTHER: NOW + 5}, NOW)
    assert cooldowns.active(NOW) == {OTHER: NOW + 5}


def test_slots_are_given_in_order_over_all_models_of_a_provider():
    slots = Slots({"zai": 2})
    first, second, third, fourth = (slots.enter(("zai", name)) for name in "abab")
    assert [ticket.granted for ticket in (first, second, third, fourth)] == [True, True, False, False]
    assert [slots.ahead(third), slots.ahead(fourth)] == [0, 1]
    assert slots.leave(second) == [third]
    assert slots.leave(fourth) == [], "a waiter that leaves frees no slot"
    assert slots.leave(fourth) == []
    fifth = slots.enter(("zai", "a"))
    assert slots.waiting(("zai", "a")) == [fifth] and slots.waiting(("zai", "b")) == []
    assert slots.leave(first) == [fifth]


@pytest.mark.parametrize("limits", [{}, {"zai": -1}, {"other": 1}])
def test_without_a_limit_everybody_passes(limits):
    slots = Slots(limits)
    tickets = [slots.enter(OTHER) for _ in range(100)]
    assert all(ticket.granted for ticket in tickets)
    assert [slots.leave(ticket) for ticket in tickets] == [[]] * 100


def test_a_slot_taken_over_counts_even_when_there_are_none_left():
    slots = Slots({"zai": 1})
    left_behind = [slots.hold(OTHER), slots.hold(OTHER)]
    waiting = slots.enter(OTHER)
    assert slots.leave(left_behind[0]) == [] and slots.ahead(waiting) == 0
    assert slots.leave(left_behind[1]) == [waiting]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.integers(0, 30)), max_size=80),
)
def test_the_limit_is_never_exceeded_and_no_slot_is_idle_while_someone_waits(limit, steps):
    slots, inside, granted = Slots({"zai": limit}), [], []
    for step, which in steps:
        if step == "enter":
            ticket = slots.enter(OTHER)
            inside.append(ticket)
            granted += [ticket] if ticket.granted else []
        elif inside:
            granted += slots.leave(inside.pop(which % len(inside)))
        holding = sum(ticket.granted for ticket in inside)
        assert holding == min(limit, len(inside))
    assert max(Counter(map(id, granted)).values(), default=1) == 1
    waiting = [ticket for ticket in inside if not ticket.granted]
    assert slots.waiting(OTHER) == waiting, "the line is in order of arrival"
