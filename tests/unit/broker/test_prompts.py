"""Prompts on the broker: a session's order, its worker, and an operator's cancel."""

from beige import wire
from broker.services import Service


def prompt(play, cli, number, session="s1", method="llm.prompt", **fields):
    play.call(cli, method, number=number, agent="travel", session=session, **fields)


def test_a_sessions_prompts_go_to_one_worker_also_without_a_key(play):
    cli = play.peer("cli/0")
    for n in range(2):
        play.peer(f"llm/{n}", "llm")
    for number in range(1, 5):
        prompt(play, cli, number)
    assert sorted(len(play.take(f"llm/{n}")) for n in range(2)) == [0, 4]
    for number in range(5, 9):
        prompt(play, cli, number, session="")
    assert sorted(len(play.take(f"llm/{n}")) for n in range(2)) == [0, 4], (
        "those without a session are spread"
    )


def test_a_session_sticks_to_its_worker_for_as_long_as_a_prompt_of_it_is_served(play):
    cli = play.peer("cli/0")
    for n in range(2):
        play.peer(f"llm/{n}", "llm")
    prompt(play, cli, 1)
    holder = next(n for n in range(2) if play.take(f"llm/{n}"))
    play.core.now += Service.STICKY_S * 2
    prompt(play, cli, 2)
    assert len(play.take(f"llm/{holder}")) == 1


def test_prompts_of_a_dead_worker_go_in_their_order_to_the_next_one(play):
    cli, dead = play.peer("cli/0"), play.peer("llm/0", "llm")
    for number in range(1, 5):
        prompt(play, cli, number, idem=f"k{number}", trace=f"t{number}")
    play.take("llm/0")
    play.core.lose(dead, "kill")
    prompt(play, cli, 5, trace="t5")
    play.peer("llm/1", "llm")
    assert [(h.trace, h.attempt) for h, _ in play.take("llm/1")] == [
        ("t1", 2), ("t2", 2), ("t3", 2), ("t4", 2), ("t5", 1),
    ]  # fmt: skip
    assert play.take("cli/0") == []


def test_a_prompt_that_had_a_worker_and_finds_no_other_may_have_been_executed(play):
    cli, dead = play.peer("cli/0"), play.peer("llm/0", "llm")
    prompt(play, cli, 1, idem="k1")
    play.take("llm/0")
    play.core.lose(dead, "kill")
    prompt(play, cli, 2, idem="k2")
    play.core.tick(play.core.now + 5.1)
    assert [(h.id, h.code, h.flags) for h, _ in play.take("cli/0")] == [
        (1, "unavailable", wire.EXECUTED_MAYBE), (2, "unavailable", 0),
    ]  # fmt: skip


def test_what_a_draining_worker_leaves_has_the_whole_time_until_the_next_one_comes(play):
    cli, ending = play.peer("cli/0"), play.peer("llm/0", "llm")
    prompt(play, cli, 1, idem="k1")
    play.take("llm/0")
    ending.draining = True
    prompt(play, cli, 2, idem="k2")
    play.core.tick(play.core.now + 8.0)
    play.core.lose(ending, "bye")
    play.core.tick(play.core.now + 4.9)
    assert play.take("cli/0") == []
    play.peer("llm/1", "llm")
    assert [h.attempt for h, _ in play.take("llm/1")] == [2, 1]


def test_a_prompt_without_idempotency_key_ends_with_its_worker(play):
    cli, dead = play.peer("cli/0"), play.peer("llm/0", "llm")
    play.peer("llm/1", "llm")
    prompt(play, cli, 1)
    play.core.lose(dead if play.take("llm/0") else play.peer("llm/2", "llm"), "kill")
    assert play.one("cli/0").code == "peer_lost"


def test_cancel_ends_running_waiting_and_queued_turns_of_one_session_alone(play):
    cli, other = play.peer("cli/0"), play.peer("cli/1")
    play.peer("llm/0", "llm", capacity=2)
    prompt(play, cli, 1)
    prompt(play, other, 2, method="llm.compact")
    prompt(play, cli, 3)
    prompt(play, cli, 4, session="s2")
    prompt(play, cli, 5, method="llm.history")
    running = {h.id for h, _ in play.take("llm/0")}
    assert play.core.cancel_prompts("travel", "s1") == 3
    sent = play.take("llm/0")
    assert {h.id for h, _ in sent if h.type == wire.CANCEL} == running
    assert [h.method for h, _ in sent if h.type == wire.CALL] == ["prompt", "history"]
    assert [(h.id, h.code, h.flags) for h, _ in play.take("cli/0")] == [
        (3, "cancelled", 0), (1, "cancelled", wire.EXECUTED_MAYBE),
    ]  # fmt: skip
    assert play.one("cli/1").code == "cancelled"
    assert play.core.cancel_prompts("travel", "s1") == 0


def test_cancelling_a_prompt_stops_the_command_it_runs(play):
    peers = play.house()
    prompt(play, peers["cli"], 1)
    play.call(peers["llm"], "sandbox.exec", parent=play.one("llm/0").id)
    executed = play.to_executor(peers)
    play.core.cancel_prompts("travel", "s1")
    stopped = play.one("sandbox/0")
    assert (stopped.type, stopped.id) == (wire.CANCEL, executed.id)
    play.recorded(peers)
