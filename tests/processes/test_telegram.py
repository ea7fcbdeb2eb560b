"""The channel telegram: the shipped plugin in a real house, against a server that speaks the Bot API."""

import contextlib
import sqlite3

import pytest

from tests.processes.channel_stage import new_channel_stage, wait_until
from tests.simulator.telegram import TOKEN, BotServer, failure

USER, GROUP = 7, -100123


def channels(url):
    config = {"token": "${BOT_TOKEN}", "users": [USER, 8], "chats": [GROUP], "apiBase": url,
              "agents": {str(GROUP): "home"}}  # fmt: skip
    return {"telegram": {"agents": ["travel", "home"], "config": config}}


@pytest.fixture(scope="module")
def running():
    with BotServer() as bot:
        environment = {"BOT_TOKEN": TOKEN}
        with new_channel_stage(channels(bot.url), environment, {"telegram": "bundled:telegram"}) as stage:
            stage.bot = bot
            stage.start()
            yield stage


@pytest.fixture
def stage(running):
    for program in ("channels", "llm"):
        if program not in running.house.processes:
            running.start(program)
    running.bot.clear()
    running.clean()
    return running


def answers(stage, text, *expected, **more):
    """Somebody writes `text`; waits until exactly this was said in the chat since."""
    before = len(stage.bot.texts(more.get("chat") or USER))
    stage.bot.say(text, **more)
    said(stage, before, *expected, chat=more.get("chat") or USER)


def said(stage, before, *expected, chat=USER):
    stage.bot.wait_for(lambda: len(stage.bot.texts(chat)) >= before + len(expected))
    assert stage.bot.texts(chat)[before:] == list(expected)


SCRIPTED = "ℹ️ scripted model: a script file speaks here, not a language model"  # noqa: RUF001


def begin_long(stage):
    """A prompt that does not end, and of which everything has been said that will be."""
    before = len(stage.bot.texts())
    stage.bot.say("long")
    stage.wait_for_effect("start sleep 60 # long")
    said(stage, before, SCRIPTED)


def kept(stage):
    """How many messages the bot has not done with."""
    path = stage.home.data / "channels" / "telegram" / "inbox.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT count(*) FROM messages").fetchone()[0]


def test_it_registers_its_commands_after_deleting_stale_ones(stage):
    stage.house.stop("channels")
    stage.bot.clear()
    stage.start("channels")
    stage.bot.wait_for(lambda: len(stage.bot.calls) >= 4)
    assert [name for name, _ in stage.bot.calls][:4] == [
        "getMe",
        "deleteMyCommands",
        "setMyCommands",
        "getUpdates",
    ]
    commands = {entry["command"] for entry in stage.bot.asked("setMyCommands")[0]["commands"]}
    assert commands == {"start", "new", "status", "verbose", "v", "stop"}


def test_a_message_is_answered_in_its_chat_and_written_down_with_its_sender(stage):
    answers(stage, "hello", SCRIPTED, "You said: hello")
    (prompt,) = (e for e in stage.session("travel", "telegram:7") if e["type"] == "prompt")
    assert (prompt["channel"], prompt["sender"], prompt["text"]) == ("telegram", "7 User 7", "hello")


def test_a_group_and_its_topics_are_conversations_of_their_own(stage):
    group = {"chat": GROUP, "kind": "supergroup"}
    answers(stage, "hi", SCRIPTED, "You said: hi", **group)
    assert stage.bot.sent[-1]["reply_parameters"]["message_id"] > 0
    answers(stage, "ho", SCRIPTED, "You said: ho", **group, is_topic_message=True, message_thread_id=5)
    assert stage.bot.sent[-1]["message_thread_id"] == 5
    assert sorted(path.stem for path in (stage.home.sessions / "home").glob("*.jsonl")) == [
        "telegram:-100123", "telegram:-100123.5",
    ]  # fmt: skip


def test_the_commands_of_the_seed_and_none_reaches_the_model(stage):
    answers(stage, "one", SCRIPTED, "You said: one")
    before = len(stage.bot.texts())
    for text in (
        "/start",
        "/status",
        "/verbose on",
        "/v off",
        "/v",
        "/nonsense",
        "/start@other_bot",
        "/new@test_bot",
    ):
        stage.bot.say(text)
    stage.bot.wait_for(lambda: len(stage.bot.texts()) >= before + 7)
    start, status, on, off, usage, unknown, new = stage.bot.texts()[before:]
    assert start.startswith("Write, and the agent travel answers.") and "/verbose" in start
    assert (
        "Session: telegram:7" in status
        and "Prompts: 1" in status
        and "Verbose: off (from the system)" in status
    )
    assert (on, off, usage) == ("Verbose is on.", "Verbose is off.", "Write /verbose on or /verbose off.")
    assert (unknown, new) == ("No such command; /start lists them.", "A fresh session.")
    answers(stage, "two", SCRIPTED, "You said: two")
    assert len([e for e in stage.session("travel", "telegram:7") if e["type"] == "prompt"]) == 1
    assert len(list((stage.home.sessions / "travel").glob("telegram:7:*.jsonl"))) == 1


def test_verbose_announces_each_tool_call_before_the_answer(stage):
    answers(stage, "/verbose on", "Verbose is on.")
    before = len(stage.bot.texts())
    stage.bot.say("run it")
    stage.bot.wait_for(lambda: stage.bot.texts()[-1] == "It printed hi")
    assert "🔧 exec: echo hi # run it" in "\n".join(stage.bot.texts()[before:-1])
    answers(stage, "/v off", "Verbose is off.")
    answers(stage, "/new", "A fresh session.")
    answers(stage, "run that", SCRIPTED, "It printed hi")


def test_a_long_answer_comes_in_messages_that_telegram_takes(stage):
    text = "".join(f"{number} {'😀' * 10}\n" for number in range(170))
    before = len(stage.bot.texts())
    stage.bot.say(text)
    stage.bot.wait_for(lambda: len(stage.bot.texts()) >= before + 3)
    scripted, *parts = stage.bot.texts()[before:]
    assert (scripted, len(parts)) == (SCRIPTED, 2)
    assert "\n".join(parts) == f"You said: {text}".strip()


def test_stop_ends_what_runs_and_forgets_what_waits(stage):
    begin_long(stage)
    stage.bot.wait_for(lambda: {"chat_id": 7, "action": "typing"} in stage.bot.asked("sendChatAction"))
    before = len(stage.bot.texts())
    for text in ("two", "three", "/stop"):
        stage.bot.say(text)
    stage.bot.wait_for(lambda: len(stage.bot.texts()) >= before + 2)
    assert sorted(stage.bot.texts()[before:]) == [
        "Stopped. Part of it may have been carried out.", "Stopped: 3.",
    ]  # fmt: skip
    stage.wait_for_effect("killed sleep 60 # long")
    answers(stage, "four", SCRIPTED, "You said: four")


def test_whoever_writes_too_much_is_told_so_once(stage):
    begin_long(stage)
    before = len(stage.bot.texts())
    for number in range(9):
        stage.bot.say(f"n{number}")
    stage.bot.say("/stop")
    stage.bot.wait_for(lambda: len(stage.bot.texts()) >= before + 3)
    busy, *stopped = stage.bot.texts()[before:]
    assert busy == "Too many messages wait already. Send it again when they are answered."
    assert sorted(stopped) == ["Stopped. Part of it may have been carried out.", "Stopped: 6."]
    answers(stage, "and now", SCRIPTED, "You said: and now")


# --- trouble --------------------------------------------------------------------------------------------


def test_trouble_of_telegrams_is_waited_out_and_nothing_is_lost_or_said_twice(stage):
    stage.bot.fail("getUpdates", failure(409, "Conflict: terminated by other getUpdates request"))
    stage.bot.fail("sendMessage", failure(429, "Too Many Requests: retry after 1", retry_after=1),
                   failure(500, "Internal Server Error"), "<html>Bad Gateway</html>")  # fmt: skip
    answers(stage, "hello", SCRIPTED, "You said: hello")
    log = stage.house.log("channels")
    assert "Too Many Requests: retry after 1; again in 1 s" in log
    assert "terminated by other getUpdates request" in log


def test_who_blocked_the_bot_is_given_up_and_the_others_are_served(stage):
    stage.bot.fail("sendMessage", failure(403, "Forbidden: bot was blocked by the user"))
    stage.bot.say("/start")
    wait_until(lambda: "chat 7 is not answered: sendMessage: 403" in stage.house.log("channels"))
    answers(stage, "hello", SCRIPTED, "You said: hello", user=8, chat=8)


def test_kill_of_channels_neither_loses_nor_repeats_a_message(stage):
    begin_long(stage)
    stage.bot.say("after it")
    stage.bot.wait_for(lambda: stage.bot.pending == [])
    stage.house.kill("channels")
    stage.bot.clear()
    stage.bot.say("while it was down")
    stage.start("channels")
    stage.bot.wait_for(lambda: "You said: while it was down" in stage.bot.texts())
    stage.bot.wait_for(lambda: stage.bot.pending == [])
    interrupted, *others = [text for text in stage.bot.texts() if text != SCRIPTED]
    assert interrupted.startswith(
        "I was restarted while I worked on this message:\n\nlong\n\nIt may have been"
    )
    assert others == ["You said: after it", "You said: while it was down"]
    assert stage.effects().count("start sleep 60 # long") == 1
    wait_until(lambda: kept(stage) == 0)
    stage.house.stop("channels")
    stage.bot.clear()
    stage.start("channels")
    answers(stage, "/stop", "Stopped: 0.")


def test_kill_of_llm_is_told_and_the_next_message_is_answered(stage):
    begin_long(stage)
    stage.house.kill("llm")
    stage.start("llm")
    stage.bot.wait_for(lambda: any("may have been carried out in part" in text for text in stage.bot.texts()))
    stage.bot.say("and now")
    stage.bot.wait_for(lambda: "You said: and now" in stage.bot.texts())


def test_a_wrong_token_is_said_in_the_log_and_never_shown():
    wrong = TOKEN[:-1] + "X"
    with (
        BotServer() as bot,
        new_channel_stage(channels(bot.url), {"BOT_TOKEN": wrong}, {"telegram": "bundled:telegram"}) as stage,
    ):
        stage.start()
        wait_until(lambda: "getMe: 401 Unauthorized" in stage.house.log("channels"))
        assert wrong not in stage.house.log("channels")


def test_an_agent_that_is_not_the_channels_is_said_in_the_log():
    with BotServer() as bot:
        wrong = channels(bot.url)
        wrong["telegram"]["agents"] = ["travel"]
        with new_channel_stage(wrong, {"BOT_TOKEN": TOKEN}, {"telegram": "bundled:telegram"}) as stage:
            stage.start("broker", "channels")
            wait_until(lambda: "'home' is not among the channel's agents" in stage.house.log("channels"))
        assert bot.calls == []
