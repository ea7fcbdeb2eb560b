"""The ledger: nothing is recorded twice, and a recorded name is good for one request only."""

import pytest

from beige.auditlog import Record
from beige.errors import Denied, Overloaded
from services.audit import ledger as module
from services.audit.ledger import Ledger, rebuild


def record(call, phase="started", digest="d", decision="allowed"):
    return Record(
        ts="t", agent="a", type="tool", tool="kv", args=[], decision=decision, phase=phase, id=call,
        digest=digest,
    )  # fmt: skip


def test_a_call_is_admitted_once():
    ledger = Ledger()
    assert ledger.admit("1-1", "d", True)
    ledger.opened(record("1-1"), 0.0)
    assert not ledger.admit("1-1", "d", True)


def test_a_recorded_name_gives_no_receipt_for_another_request():
    ledger = Ledger()
    ledger.opened(record("1-1"), 0.0)
    with pytest.raises(Denied, match="another request"):
        ledger.admit("1-1", "other", True)


def test_a_finished_call_gives_no_second_receipt():
    ledger = Ledger()
    ledger.opened(record("1-1"), 0.0)
    ledger.closed("1-1")
    for allowed, digest in [(True, "d"), (True, "other"), (False, "other")]:
        with pytest.raises(Denied, match="finished"):
            ledger.admit("1-1", digest, allowed)


def test_a_denial_dispatched_again_is_recognised():
    ledger = Ledger()
    ledger.closed("1-1", "d")
    assert not ledger.admit("1-1", "d", False)


def test_open_calls_are_bounded():
    ledger = Ledger()
    for n in range(module.MAX_OPEN):
        ledger.opened(record(f"1-{n}"), 0.0)
    with pytest.raises(Overloaded):
        ledger.admit("2-1", "d", True)


def test_memory_of_closed_calls_is_bounded():
    ledger = Ledger()
    for n in range(module.MAX_CLOSED + 10):
        ledger.closed(f"1-{n}", "d")
    assert not ledger.is_closed("1-9")
    assert ledger.is_closed("1-10")


def test_calls_of_other_brokers_are_found_by_their_name():
    ledger = Ledger()
    for call in ["0000000a-1", "0000000b-1", "000000a0-1"]:
        ledger.opened(record(call), 0.0)
    assert [r.id for r in ledger.of_other_epochs(10)] == ["0000000b-1", "000000a0-1"]


def test_the_log_read_backwards_gives_the_ledger_back():
    log = [
        record("1-1"),
        record("1-2", digest="e"),
        record("1-3", "finished", "f", "denied"),
        record("1-1", "finished", ""),
        record("1-4"),
    ]
    ledger = rebuild(reversed(log), 5.0)
    assert list(ledger.open) == ["1-2", "1-4"]
    assert ledger.open["1-2"].since == 5.0
    assert not ledger.admit("1-2", "e", True)
    assert not ledger.admit("1-3", "f", False)
    with pytest.raises(Denied, match="finished"):
        ledger.admit("1-1", "d", True)
