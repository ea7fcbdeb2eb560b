"""Whether a call fits, what it is charged, and that the limits hold whatever happens in which order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beige.messages.policy import LeaseReport, Usage
from beige.money import Price
from services.policy.budget import (
    NOTHING,
    SHORTEST_ANSWER,
    Account,
    Amount,
    Ask,
    Fits,
    Limit,
    Refuse,
    Standing,
    Wait,
    accounts_of,
    charge,
    day_of,
    fit,
    resets,
)
from services.policy.ledger import KEEP_DAYS, MAX_SESSIONS, Ledger, Reserved, Settled, Used
from services.policy.wording import denial, warning

PRICE = Price(1_000_000, 5_000_000, 100_000, 1_250_000)
"""$1 and $5 a million: a token of input is reserved at 1,250 nano-dollars, one of output at 5,000."""
DAY = Account("day", "travel", day="2026-03-05")


def standing(limit, used=NOTHING, reserved=NOTHING, account=DAY):
    return Standing(account, limit, used, reserved)


def tokens(number):
    return Amount(number, 0)


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        (standing(Limit()), Fits(Amount(9000, 1000 * 1250 + 8000 * 5000), None)),
        (standing(Limit(tokens=9000)), Fits(Amount(9000, 41_250_000), None)),
        (standing(Limit(tokens=8999)), Fits(Amount(8999, 41_245_000), 7999)),
        (standing(Limit(tokens=2024)), Fits(Amount(2024, 6_370_000), SHORTEST_ANSWER)),
        (standing(Limit(tokens=2023)), Refuse),
        (standing(Limit(tokens=9000), used=tokens(6977)), Refuse),
        (standing(Limit(tokens=9000), used=tokens(6976)), Fits(Amount(2024, 6_370_000), SHORTEST_ANSWER)),
        (standing(Limit(tokens=9000), reserved=tokens(1)), Wait),
        (standing(Limit(tokens=9000), used=tokens(6977), reserved=tokens(1)), Refuse),
        (standing(Limit(tokens=99_999), used=tokens(80_000), reserved=tokens(10_999)), Fits(
            Amount(9000, 41_250_000), None)),
        (standing(Limit(nano=41_250_000)), Fits(Amount(9000, 41_250_000), None)),
        (standing(Limit(nano=41_249_999)), Fits(Amount(8999, 41_245_000), 7999)),
        (standing(Limit(nano=6_369_999)), Refuse),
        (standing(Limit(nano=1)), Refuse),
        (standing(Limit(nano=41_250_000), reserved=Amount(0, 1)), Wait),
        (standing(Limit(tokens=9000, nano=6_370_000)), Fits(Amount(2024, 6_370_000), SHORTEST_ANSWER)),
        (standing(Limit(tokens=5), used=tokens(100)), Refuse),
    ],
    ids=str,
)  # fmt: skip
def test_what_fits(one, answer):
    found = fit(Ask(1000, 8000, PRICE), [standing(Limit(tokens=10**9)), one])
    assert found == answer if isinstance(answer, Fits) else isinstance(found, answer)


def test_a_model_that_answers_shortly_needs_no_more():
    assert fit(Ask(0, 100, PRICE), [standing(Limit(tokens=100))]) == Fits(Amount(100, 500_000), None)
    assert isinstance(fit(Ask(0, 100, PRICE), [standing(Limit(tokens=99))]), Refuse)


def test_a_price_of_zero_fits_any_limit_in_money():
    assert fit(Ask(1000, 8000, Price()), [standing(Limit(nano=1))]) == Fits(Amount(9000, 0), None)


@pytest.mark.parametrize(
    ("report", "charged"),
    [
        (None, Amount(500, 7)),
        (LeaseReport("answered"), Amount(500, 7)),
        (LeaseReport("answered", usage=Usage()), Amount(500, 7)),
        (LeaseReport("answered", usage=Usage(10, 2)), Amount(12, 20_000)),
        (LeaseReport("answered", usage=Usage(0, 0, 10, 4)), Amount(14, 6_000)),
        (LeaseReport("failed", "rate_limited", 429), NOTHING),
        (LeaseReport("failed", "overloaded", 529), NOTHING),
        (LeaseReport("failed", "auth", 401), NOTHING),
        (LeaseReport("failed", "connection"), NOTHING),
        (LeaseReport("failed", "stream_cut"), Amount(500, 7)),
        (LeaseReport("failed", "timeout"), Amount(500, 7)),
        (LeaseReport("failed", "something new"), Amount(500, 7)),
        (LeaseReport("failed"), Amount(500, 7)),
        (LeaseReport("answered", "rate_limited"), Amount(500, 7)),
        (LeaseReport("failed", "stream_cut", usage=Usage(10, 2)), Amount(12, 20_000)),
        (LeaseReport("failed", "rate_limited", usage=Usage(10, 2)), Amount(12, 20_000)),
    ],
    ids=str,
)
def test_what_a_call_is_charged(report, charged):
    assert charge(report, Amount(500, 7), PRICE) == charged


def test_days_are_of_utc():
    assert day_of(1_772_755_199.9) == "2026-03-05" and day_of(1_772_755_200.0) == "2026-03-06"
    assert resets(DAY) == "2026-03-06T00:00:00Z"
    assert resets(Account("day", "a", day="2026-12-31")) == "2027-01-01T00:00:00Z"
    assert resets(Account("total", "a")) == resets(Account("session", "a", "s")) == ""


@pytest.mark.parametrize(
    ("account", "limit", "text"),
    [
        (DAY, Limit(tokens=10_000),
         "agent 'travel' on 2026-03-05 may use 10,000 tokens and has used 9,500 tokens; this call needs "
         "2,024 tokens or more; a new day begins at 2026-03-06T00:00:00Z"),
        (Account("session", "travel", "s1"), Limit(nano=2_000_000_000),
         "this session of agent 'travel' may use $2.00 and has used $1.50; this call needs $0.0064 or more; "
         "a new session begins with nothing used"),
        (Account("total", "travel"), Limit(5, 2_000_000_000),
         "agent 'travel' in total may use 5 tokens and $2.00 and has used 9,500 tokens and $1.50; this call "
         "needs 2,024 tokens and $0.0064 or more; it is never reset: agents.travel.budget.total is in the "
         "configuration"),
        (Account("house", day="2026-03-05"), Limit(tokens=1),
         "all agents together on 2026-03-05 may use 1 tokens and has used 9,500 tokens; this call needs "
         "2,024 tokens or more; a new day begins at 2026-03-06T00:00:00Z"),
    ],
    ids=["day", "session", "total", "house"],
)  # fmt: skip
def test_a_refusal_names_the_limit_what_is_used_and_when_it_is_new(account, limit, text):
    used = Amount(9500, 1_500_000_000)
    assert (
        denial(Refuse(standing(limit, used, account=account), Amount(2024, 6_370_000)))
        == f"Budget exceeded: {text}"
    )


@pytest.mark.parametrize(
    ("limit", "used", "warned"),
    [
        (Limit(tokens=100, soft=0.8), 79, False),
        (Limit(tokens=100, soft=0.8), 80, True),
        (Limit(tokens=100, soft=1.0), 100, False),
        (Limit(nano=100, soft=0.5), 50, True),
        (Limit(tokens=1000, nano=100, soft=0.5), 50, True),
        (Limit(tokens=1000, soft=0.5), 50, False),
    ],
)
def test_the_soft_limit_warns(limit, used, warned):
    text = warning([standing(limit, Amount(used, used))])
    assert bool(text) == warned
    assert not warned or "agent 'travel' on 2026-03-05 has used" in text


# --- the ledger ---------------------------------------------------------------------------------------


def reserved(lease, amount, session="s", day="2026-03-05"):
    return Reserved(lease, "travel", session, "p", day, "prov", "m", amount.tokens, amount.nano)


def test_a_settlement_counts_once():
    ledger = Ledger()
    for event in (reserved("l", Amount(10, 20)), Settled("l", 3, 4), Settled("l", 3, 4), Settled("x", 9, 9)):
        ledger.apply(event)
    for account in accounts_of("travel", "s", "2026-03-05"):
        assert (ledger.used(account), ledger.reserved(account)) == (Amount(3, 4), NOTHING)
    assert not ledger.open


def test_old_days_and_the_sessions_used_longest_ago_are_forgotten():
    ledger = Ledger()
    for number in range(MAX_SESSIONS + 5):
        ledger.apply(Used("session", "travel", f"s{number}", "", 1, 1))
    ledger.apply(reserved("l", Amount(1, 1), session="s0"))
    ledger.apply(Settled("l", 1, 1))
    for number in range(KEEP_DAYS + 3):
        ledger.apply(Used("day", "travel", "", f"2025-{1 + number // 28:02}-{1 + number % 28:02}", 1, 1))
    kept = ledger.summary("2026-03-05")
    sessions = {event.session for event in kept if event.scope == "session"}
    assert len(sessions) == MAX_SESSIONS and "s0" in sessions and "s1" not in sessions
    days = {event.day for event in kept if event.day}
    assert len(days) == KEEP_DAYS and "2026-03-05" in days and "2025-01-01" not in days


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 3000), st.sampled_from(["s1", "s2"])),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 12_000)),
        st.tuples(st.just("silence"), st.integers(0, 9)),
        st.tuples(st.just("crash")),
        st.tuples(st.just("tomorrow")),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(STEPS, st.integers(2000, 40_000), st.integers(2000, 40_000))
def test_no_limit_is_passed_by_more_than_calls_used_beyond_what_they_reserved(steps, in_session, in_day):
    """Any order of reservations, settlements, silence, crashes and new days."""
    limits = {"session": Limit(tokens=in_session), "day": Limit(tokens=in_day, nano=in_day * 4000)}
    ledger, events, day, out = Ledger(), [], 5, {}
    charged, excess = {}, {}

    def apply(event):
        events.append(event)
        ledger.apply(event)

    def settle(lease, report):
        accounts, amount = out.pop(lease)
        cost = charge(report, amount, PRICE)
        apply(Settled(lease, cost.tokens, cost.nano))
        for account in accounts:
            charged[account] = charged.get(account, NOTHING) + cost
            over = Amount(max(0, cost.tokens - amount.tokens), max(0, cost.nano - amount.nano))
            excess[account] = excess.get(account, NOTHING) + over

    for number, (step, *rest) in enumerate(steps):
        today = f"2026-03-{day:02}"
        if step == "reserve":
            accounts = accounts_of("travel", rest[1], today)
            limited = [
                Standing(one, limits[one.scope], ledger.used(one), ledger.reserved(one))
                for one in accounts
                if one.scope in limits
            ]
            found = fit(Ask(rest[0], 4000, PRICE), limited)
            assert not isinstance(found, Wait) or any(one.reserved != NOTHING for one in limited)
            if isinstance(found, Fits):
                apply(reserved(f"l{number}", found.amount, rest[1], today))
                out[f"l{number}"] = (accounts, found.amount)
        elif step in ("settle", "silence") and out:
            lease = list(out)[rest[0] % len(out)]
            settle(lease, LeaseReport("answered", usage=Usage(rest[1])) if step == "settle" else None)
        elif step == "crash":
            again = Ledger()
            for event in ledger.summary(today) if number % 2 else events:
                again.apply(event)
            ledger = again
        elif step == "tomorrow":
            day += 1
        assert set(ledger.open) == set(out)
        for account, amount in charged.items():
            assert ledger.used(account) == amount, "the sum is what was charged, to the token"
            limit = limits.get(account.scope)
            if limit:
                total = amount + ledger.reserved(account)
                over = excess[account]
                assert total.tokens <= limit.tokens + over.tokens
                assert limit.nano is None or total.nano <= limit.nano + over.nano
        for account in ledger.accounts():
            held = ledger.reserved(account)
            assert held.tokens >= 0 and held.nano >= 0 and ledger.used(account).tokens >= 0
    for lease in list(out):
        settle(lease, None)
    assert all(ledger.reserved(account) == NOTHING for account in ledger.accounts())
