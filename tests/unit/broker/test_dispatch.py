"""Queues, capacity, affinity, streams and full pipes."""

from beige import wire
from beige.wire import Header
from broker.links import MAX_OUTBOX
from broker.services import MAX_QUEUE, MAX_QUEUE_BYTES


def prompt(play, cli, number, key=""):
    play.call(cli, "llm.prompt", number=number, agent="travel", key=key)


def test_capacity_is_never_exceeded_and_waiting_calls_go_out_in_order(play):
    cli, llm = play.peer("cli/0"), play.peer("llm/0", "llm", capacity=2)
    for number in range(1, 6):
        prompt(play, cli, number)
    first = play.take("llm/0")
    assert len(first) == 2
    play.reply(llm, first[0][0])
    third = play.one("llm/0")
    assert third.id > first[1][0].id


def test_the_least_loaded_worker_gets_the_next_call(play):
    cli = play.peer("cli/0")
    for n in range(2):
        play.peer(f"llm/{n}", "llm", capacity=4)
    for number in range(1, 5):
        prompt(play, cli, number)
    assert len(play.take("llm/0")) == len(play.take("llm/1")) == 2


def test_calls_with_one_key_stay_with_one_worker_until_it_dies(play):
    cli = play.peer("cli/0")
    workers = {f"llm/{n}": play.peer(f"llm/{n}", "llm") for n in range(3)}
    for number in range(1, 4):
        prompt(play, cli, number, key="travel/s1")
    got = {user: play.take(user) for user in workers}
    holder = next(user for user, calls in got.items() if calls)
    assert len(got[holder]) == 3
    play.core.lose(workers[holder], "kill")
    prompt(play, cli, 9, key="travel/s1")
    assert sum(len(play.take(user)) for user in workers if user != holder) == 1


def test_a_full_sticky_worker_holds_up_only_its_own_key(play):
    cli, llm = play.peer("cli/0"), play.peer("llm/0", "llm", capacity=1)
    prompt(play, cli, 1, key="a")
    held = play.one("llm/0")
    prompt(play, cli, 2, key="a")
    play.peer("llm/1", "llm", capacity=1)
    prompt(play, cli, 3, key="b")
    assert len(play.take("llm/1")) == 1
    play.reply(llm, held)
    assert len(play.take("llm/0")) == 1


def test_a_draining_worker_gets_no_new_call(play):
    cli, llm = play.peer("cli/0"), play.peer("llm/0", "llm")
    llm.draining = True
    prompt(play, cli, 1)
    assert not play.take("llm/0")


def test_a_full_queue_answers_overloaded_and_not_executed(play):
    cli = play.peer("cli/0")
    for number in range(1, MAX_QUEUE + 2):
        prompt(play, cli, number)
    answer = play.one("cli/0")
    assert (answer.code, answer.flags, answer.id) == ("overloaded", 0, MAX_QUEUE + 1)


def cancel(play, peer, number):
    play.core.cancel(peer, Header(type=wire.CANCEL, id=number))


def test_a_cancelled_call_leaves_its_place_in_the_queue(play):
    """Else an agent that calls and cancels would fill the queue of a busy service for all others."""
    cli = play.peer("cli/0")
    for number in range(1, 2 * MAX_QUEUE):
        prompt(play, cli, number)
        cancel(play, cli, number)
    assert {header.code for header, _ in play.take("cli/0")} == {"cancelled"}
    prompt(play, cli, 1)
    llm = play.peer("llm/0", "llm")
    play.reply(llm, play.one("llm/0"))
    assert play.one("cli/0").type == wire.REPLY


def test_a_call_cancelled_before_the_executor_gives_its_bytes_back(play):
    """Its body is dropped when its end is recorded: it must not stay counted."""
    body = bytes(1024 * 1024)
    peers = {name: play.peer(f"{name}/0", name) for name in ("policy", "audit")}
    cli = play.peer("cli/0")
    play.peer("sandbox/0", "sandbox", capacity=0)
    for number in range(1, 2 * MAX_QUEUE_BYTES // len(body)):
        play.call(cli, "sandbox.exec", number=number, body=body, agent="travel")
        play.reply(peers["policy"], play.one("policy/0"), verdict=b"yes")
        play.reply(peers["audit"], play.one("audit/0"), receipt=b"written")
        cancel(play, cli, number)
        play.recorded(peers)
        assert play.one("cli/0").code == "cancelled"
    assert not play.take("sandbox/0")


def test_a_call_that_never_left_the_queue_was_not_executed(play):
    cli = play.peer("cli/0")
    play.peer("llm/0", "llm", capacity=0)
    play.call(cli, "llm.prompt", agent="travel", ttl_ms=500)
    play.core.tick(play.core.now + 0.6)
    answer = play.one("cli/0")
    assert (answer.code, answer.flags) == ("deadline_exceeded", 0)


def test_a_full_pipe_delays_and_keeps_the_order(play):
    cli, _ = play.peer("cli/0"), play.peer("llm/0", "llm")
    play.port.full.add("llm/0")
    for number in range(1, 4):
        prompt(play, cli, number)
    assert not play.take("llm/0")
    play.port.full.clear()
    play.core.tick(play.core.now + 0.01)
    ids = [h.id for h, _ in play.take("llm/0")]
    assert len(ids) == 3 and ids == sorted(ids)


def test_a_peer_that_does_not_read_is_kicked_and_its_calls_end(play):
    cli, llm = play.peer("cli/0"), play.peer("llm/0", "llm", capacity=4096)
    play.port.full.add("llm/0")
    for number in range(1, MAX_OUTBOX + 2):
        prompt(play, cli, number)
    assert play.port.kicked == ["llm/0"] and not llm.alive
    codes = {h.code for h, _ in play.take("cli/0")}
    assert codes == {"peer_lost"}


def test_a_silent_peer_is_dead_after_three_heartbeats(play):
    play.peer("cli/0")
    play.core.heartbeat(play.core.now + wire.DEAD_AFTER_S - 0.1)
    assert len(play.core.peers) == 1
    play.core.heartbeat(play.core.now + wire.DEAD_AFTER_S + 0.1)
    assert not play.core.peers


def test_an_unreachable_peer_is_noticed_at_the_next_message(play):
    cli, _ = play.peer("cli/0"), play.peer("llm/0", "llm")
    prompt(play, cli, 1)
    play.port.gone.add("llm/0")
    play.core.disconnected(next(p.fd for p in play.core.peers.values() if p.user == "llm/0"))
    assert play.one("cli/0").code == "peer_lost"


def stream(play, credit=2, size=100):
    cli, llm = play.peer("cli/0"), play.peer("llm/0", "llm")
    play.call(cli, "llm.prompt", agent="travel", credit=credit, credit_bytes=size)
    return cli, llm, play.one("llm/0")


def test_items_reach_the_caller_within_its_credit(play):
    _, llm, at = stream(play)
    assert (at.credit, at.credit_bytes) == (2, 100)
    play.core.item(llm, Header(type=wire.ITEM, id=at.id), b"one")
    header, body = play.take("cli/0")[0]
    assert (header.type, header.id, body) == (wire.ITEM, 1, b"one")


def test_a_producer_that_exceeds_its_credit_is_cut(play):
    _, llm, at = stream(play)
    for _ in range(3):
        play.core.item(llm, Header(type=wire.ITEM, id=at.id), b"x")
    assert [h.type for h, _ in play.take("cli/0")] == [wire.ITEM, wire.ITEM, wire.ERR]
    assert [h.type for h, _ in play.take("llm/0")] == [wire.CANCEL]


def test_byte_credit_counts_too(play):
    _, llm, at = stream(play, credit=10, size=100)
    play.core.item(llm, Header(type=wire.ITEM, id=at.id), b"x" * 150)
    play.core.item(llm, Header(type=wire.ITEM, id=at.id), b"x")
    assert [h.type for h, _ in play.take("cli/0")] == [wire.ITEM, wire.ERR]


def test_more_credit_lets_more_items_through(play):
    cli, llm, at = stream(play, credit=1)
    play.core.item(llm, Header(type=wire.ITEM, id=at.id), b"1")
    play.core.credit(cli, Header(type=wire.CREDIT, id=1, credit=1, credit_bytes=10, flags=wire.TO_WORKER))
    granted = play.one("llm/0")
    assert (granted.type, granted.id, granted.credit) == (wire.CREDIT, at.id, 1)
    play.core.item(llm, Header(type=wire.ITEM, id=at.id), b"2")
    assert len(play.take("cli/0")) == 2


def test_upstream_needs_the_workers_credit(play):
    cli, llm, at = stream(play)
    play.core.credit(llm, Header(type=wire.CREDIT, id=at.id, credit=1, credit_bytes=10))
    assert play.one("cli/0").type == wire.CREDIT
    up = Header(type=wire.ITEM, id=1, flags=wire.TO_WORKER)
    play.core.item(cli, up, b"1")
    assert play.take("llm/0")[0][1] == b"1"
    play.core.item(cli, up, b"2")
    assert play.one("cli/0").type == wire.ERR


def test_a_stranger_cannot_feed_a_stream(play):
    _, _, at = stream(play)
    thief = play.peer("llm/1", "llm")
    play.core.item(thief, Header(type=wire.ITEM, id=at.id), b"stolen")
    assert not play.take("cli/0")
    assert play.core.counters["orphan_item"] == 1
