"""The corridor as a playbook: who gets what, in which order, and what happens when a station fails."""

import pytest

from beige import wire


def make_exec(play, peers, **fields):
    play.call(peers["cli"], "sandbox.exec", agent="travel", session="s1", channel="cli", **fields)


def test_a_governed_call_walks_policy_audit_executor_audit(play):
    peers = play.house()
    make_exec(play, peers)
    asked = play.one("policy/0")
    assert (asked.hop, asked.agent, asked.session, asked.src) == (wire.AUTHORIZE, "travel", "s1", "cli/0")
    assert not play.take("audit/0") and not play.take("sandbox/0")
    play.reply(peers["policy"], asked, verdict=b"yes")
    started = play.one("audit/0")
    assert (started.hop, started.verdict, started.call) == (wire.STARTED, b"yes", asked.call)
    assert not play.take("sandbox/0")
    play.reply(peers["audit"], started, receipt=b"written")
    executed = play.one("sandbox/0")
    assert (executed.hop, executed.verdict, executed.receipt) == (wire.EXECUTE, b"yes", b"written")
    play.reply(peers["sandbox"], executed, body=b"result", outcome=wire.Outcome(exit_code=3, output_bytes=7))
    assert not play.take("cli/0"), "no result without a record"
    finished = play.recorded(peers)
    assert (finished.outcome.exit_code, finished.outcome.output_bytes) == (3, 7)
    answer, body = play.take("cli/0")[0]
    assert (answer.type, answer.id, body) == (wire.REPLY, 1, b"result")
    assert not play.core.calls and not play.core.tokens


def test_a_denied_call_is_recorded_and_never_reaches_the_executor(play):
    peers = play.house()
    make_exec(play, peers)
    play.error(peers["policy"], play.one("policy/0"), "denied", "Permission denied", verdict=b"no")
    assert not play.take("cli/0"), "the denial is answered only once it is recorded"
    started = play.one("audit/0")
    assert (started.hop, started.verdict) == (wire.STARTED, b"no")
    play.reply(peers["audit"], started, receipt=b"written")
    assert not play.take("sandbox/0")
    answer, body = play.take("cli/0")[0]
    assert (answer.type, answer.code, answer.flags) == (wire.ERR, "denied", 0)
    assert wire.decode_error_body(body) == "Permission denied"


def test_where_nobody_serves_no_call_waits(play):
    cli = play.peer("cli/0")
    play.core.tick(play.core.now)
    play.core.tick(play.core.now + 4.0)
    play.call(cli, "sandbox.list", 1)
    play.core.tick(play.core.now + 0.9)
    assert play.take("cli/0") == [], "it may come yet: the broker has just started"
    play.core.tick(play.core.now + 0.1)
    assert play.one("cli/0").code == "unavailable"
    play.call(cli, "sandbox.list", 2)
    play.core.tick(play.core.now + 0.01)
    assert play.one("cli/0").code == "unavailable", "nobody has come since"
    sandbox = play.peer("sandbox/0", "sandbox")
    play.core.tick(play.core.now + 60.0)
    play.core.lose(sandbox, "died")
    play.call(cli, "sandbox.list", 3)
    play.core.tick(play.core.now + 9.9)
    assert play.take("cli/0") == [], "it is being restarted"
    sandbox = play.peer("sandbox/0", "sandbox")
    assert play.one("sandbox/0").method == "list"
    play.core.lose(sandbox, "died")
    play.take("cli/0")
    play.call(cli, "sandbox.list", 4)
    play.core.tick(play.core.now + 10.1)
    assert play.one("cli/0").code == "unavailable", "it did not come back"


def test_a_result_waits_for_its_record_however_long_audit_is_gone(play):
    peers = play.house()
    play.call(peers["cli"], "sandbox.exec", agent="travel", ttl_ms=600_000)
    executing = play.to_executor(peers)
    play.core.tick(play.core.now)
    play.core.lose(peers["audit"], "died")
    play.core.tick(play.core.now + 60.0)
    play.reply(peers["sandbox"], executing)
    play.core.tick(play.core.now + 9.9)
    assert play.take("cli/0") == []
    peers["audit"] = play.peer("audit/0", "audit")
    assert play.recorded(peers).hop == wire.FINISHED
    assert play.one("cli/0").type == wire.REPLY


@pytest.mark.parametrize("down", ["policy", "audit", "sandbox"])
def test_without_a_station_nothing_executes_and_the_caller_gets_unavailable(play, down):
    peers = play.house()
    play.core.lose(peers[down], "bye")
    make_exec(play, peers, ttl_ms=60_000)
    if down != "policy":
        play.reply(peers["policy"], play.one("policy/0"), verdict=b"yes")
    if down == "sandbox":
        play.reply(peers["audit"], play.one("audit/0"), receipt=b"written")
    play.core.tick(play.core.now + 4.9)
    assert not play.take("cli/0")
    play.core.tick(play.core.now + 0.2)
    if down == "sandbox":
        assert play.recorded(peers).code == "unavailable"
    answer = play.one("cli/0")
    assert (answer.code, answer.flags) == ("unavailable", 0)
    assert not play.take("sandbox/0")


def test_when_audit_cannot_write_nothing_executes(play):
    peers = play.house()
    make_exec(play, peers)
    play.reply(peers["policy"], play.one("policy/0"), verdict=b"yes")
    play.error(peers["audit"], play.one("audit/0"), "failed", "disk full")
    assert not play.take("sandbox/0")
    assert play.one("cli/0").code == "unavailable"


def test_when_audit_dies_the_record_is_sent_again_and_the_result_waits_for_it(play):
    peers = play.house()
    make_exec(play, peers)
    play.reply(peers["sandbox"], play.to_executor(peers), body=b"result")
    first = play.one("audit/0")
    play.core.lose(peers["audit"], "kill")
    assert not play.take("cli/0")
    peers["audit"] = play.peer("audit/0", "audit")
    assert play.recorded(peers).call == first.call
    assert play.one("cli/0").type == wire.REPLY


def test_a_started_record_is_always_finished(play):
    """Executor dies: the caller hears peer_lost(maybe), and the record is closed first."""
    peers = play.house()
    make_exec(play, peers)
    play.to_executor(peers)
    play.core.lose(peers["sandbox"], "kill")
    assert not play.take("cli/0")
    finished = play.recorded(peers)
    assert finished.code == "peer_lost" and finished.outcome.error.startswith("peer_lost: ")
    answer = play.one("cli/0")
    assert (answer.code, answer.flags) == ("peer_lost", wire.EXECUTED_MAYBE)


def test_an_execution_is_never_dispatched_twice_without_an_idempotency_key(play):
    peers = play.house()
    make_exec(play, peers)
    play.to_executor(peers)
    play.core.lose(peers["sandbox"], "kill")
    play.peer("sandbox/0", "sandbox")
    assert not play.take("sandbox/0")


def test_with_an_idempotency_key_it_is(play):
    peers = play.house()
    make_exec(play, peers, idem="k1")
    first = play.to_executor(peers)
    play.core.lose(peers["sandbox"], "kill")
    play.peer("sandbox/0", "sandbox")
    second = play.one("sandbox/0")
    assert (second.call, second.attempt) == (first.call, 2)


def test_cancelling_stops_the_executor_and_closes_the_record(play):
    peers = play.house()
    make_exec(play, peers)
    at = play.to_executor(peers)
    play.core.cancel(peers["cli"], wire.Header(type=wire.CANCEL, id=1))
    told = play.one("sandbox/0")
    assert (told.type, told.id) == (wire.CANCEL, at.id)
    assert play.recorded(peers).code == "cancelled"
    assert play.one("cli/0").code == "cancelled"


def test_the_death_of_the_caller_cancels_and_is_recorded(play):
    peers = play.house()
    make_exec(play, peers)
    play.to_executor(peers)
    play.core.lose(peers["cli"], "kill")
    assert play.one("sandbox/0").type == wire.CANCEL
    play.recorded(peers)
    assert not play.core.calls


def test_the_deadline_ends_a_call_at_the_executor(play):
    peers = play.house()
    make_exec(play, peers, ttl_ms=1000)
    play.to_executor(peers)
    play.core.tick(play.core.now + 1.01)
    assert play.one("sandbox/0").type == wire.CANCEL
    play.recorded(peers)
    answer = play.one("cli/0")
    assert (answer.code, answer.flags) == ("deadline_exceeded", wire.EXECUTED_MAYBE)


def test_a_late_answer_of_the_executor_is_dropped_and_counted(play):
    peers = play.house()
    make_exec(play, peers, ttl_ms=1000)
    at = play.to_executor(peers)
    play.core.tick(play.core.now + 1.01)
    play.take("sandbox/0")
    play.reply(peers["sandbox"], at, body=b"late")
    play.recorded(peers)
    assert play.one("cli/0").type == wire.ERR
    assert play.core.counters["orphan_reply"] == 1


def test_a_result_that_audit_is_too_slow_for_is_not_released(play):
    peers = play.house()
    make_exec(play, peers, ttl_ms=1000)
    play.reply(peers["sandbox"], play.to_executor(peers), body=b"result")
    play.core.tick(play.core.now + 1.01)
    answer, body = play.take("cli/0")[0]
    assert (answer.code, answer.flags) == ("deadline_exceeded", wire.EXECUTED_MAYBE)
    assert b"result" not in body
    play.recorded(peers)
    assert not play.take("cli/0") and not play.core.calls


def test_calls_are_conserved(play):
    """accepted = replied + errored + caller gone + pending, whatever happened."""
    peers = play.house()
    for number in range(1, 6):
        make_exec(play, peers) if number == 1 else play.call(
            peers["cli"], "sandbox.exec", number=number, agent="travel"
        )
    play.core.lose(peers["cli"], "kill")
    count = play.core.counters
    ended = count["calls_replied"] + count["calls_errored"] + count["calls_caller_gone"]
    assert count["calls_accepted"] == 5 == ended
