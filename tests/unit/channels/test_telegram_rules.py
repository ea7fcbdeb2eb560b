"""The rules of the bundled channel telegram: who is served, what is said, what is kept."""

import asyncio
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import Cancelled, Failed
from beige.messages.llm import PromptEvent, SessionInfo
from beige.messages.session_settings import Setting
from beige.paths import bundled_plugins_dir
from beige.plugins.channels import ConversationStatus

sys.path.insert(0, str(bundled_plugins_dir() / "telegram"))
import bot_api
import bot_text
from bot_inbox import Entry, Inbox
from bot_settings import Settings, settings_of

sys.path.pop(0)
TOKEN = "123:abcdefghijklmnop"


def units(text):
    return len(text.encode("utf-16-le")) // 2


# --- settings -----------------------------------------------------------------------------------------


def test_what_is_configured_is_taken():
    config = {"token": TOKEN, "users": [7], "chats": [-5], "agents": {"-5": "home"}}
    assert settings_of(config) == Settings(TOKEN, frozenset({7}), frozenset({-5}), {-5: "home"})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"token": None}, "config.token"),
        ({"token": "${TELEGRAM_TOKEN}"}, "config.token"),
        ({"token": f"{TOKEN}/../x"}, "config.token"),
        ({"token": f"{TOKEN}\n"}, "config.token"),
        ({"users": []}, "config.users: lists nobody"),
        ({"users": None}, "config.users"),
        ({"users": ["7"]}, "config.users: must be an array"),
        ({"users": [True]}, "config.users: must be an array"),
        ({"users": "*"}, "config.users: must be an array"),
        ({"chats": ["x"]}, "config.chats"),
        ({"agents": []}, "config.agents"),
        ({"agents": {"x": "home"}}, "config.agents"),
        ({"apiBase": "http://api.example"}, "config.apiBase: must be https"),
        ({"apiBase": "http://127.0.0.1.evil.example/"}, "config.apiBase: must be https"),
        ({"apiBase": "http://127.0.0.1:80@evil.example/"}, "config.apiBase: must be https"),
        ({"apiBase": "https://user:x@api.example"}, "config.apiBase: must be https"),
        ({"apiBase": "https://"}, "config.apiBase: must be https"),
        ({"apiBase": "https://[x"}, "config.apiBase: must be https"),
        ({"user": [7]}, "config.user: unknown key"),
    ],
)
def test_what_is_refused_is_named_and_no_value_is_shown(change, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        settings_of({"token": TOKEN, "users": [7]} | change)
    assert TOKEN not in str(caught.value)
    assert TOKEN not in repr(Settings(TOKEN, frozenset({7})))


@pytest.mark.parametrize(
    ("user", "chat", "kind", "served"),
    [
        (7, 7, "private", True),
        (7, -5, "group", True),
        (7, -5, "supergroup", True),
        (7, -6, "group", False),
        (8, 8, "private", False),
        (8, -5, "group", False),
        (None, -5, "channel", False),
        (7, -6, "channel", False),
    ],
)
def test_who_is_served(user, chat, kind, served):
    assert Settings(TOKEN, frozenset({7}), frozenset({-5})).serves(user, chat, kind) is served


# --- what is said -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("hello", None),
        ("a /new", None),
        ("/new", ("new", "")),
        ("/V  ON ", ("v", "on")),
        ("/verbose@Test_Bot off", ("verbose", "off")),
        ("/new@another_bot", ("", "")),
        ("/", ("", "")),
        ("/etc/passwd", ("etc/passwd", "")),
    ],
)
def test_commands(text, command):
    assert bot_text.command_of(text, "test_bot") == command


@given(st.text(alphabet=st.sampled_from("ab \n😀é"), max_size=20_000))
def test_pieces_fit_and_lose_nothing_but_blanks(text):
    pieces = bot_text.pieces(text)
    assert pieces and all(0 < units(piece) <= bot_text.LIMIT and piece.strip() for piece in pieces)
    if text.strip():
        assert "".join("".join(pieces).split()) == "".join(text.split())


def test_a_text_is_cut_at_lines_then_words_then_anywhere():
    lines = bot_text.pieces("x" * 3000 + "\n" + "y" * 3000)
    assert [set(piece) for piece in lines] == [{"x"}, {"y"}]
    words = bot_text.pieces("x" * 3000 + " " + "y" * 3000)
    assert [set(piece) for piece in words] == [{"x"}, {"y"}]
    assert [len(piece) for piece in bot_text.pieces("x" * 5000)] == [4096, 904]
    assert [len(piece) for piece in bot_text.pieces("😀" * 3000)] == [2048, 952]


def test_an_endless_answer_is_bounded_and_says_so():
    pieces = bot_text.pieces("x" * 1_000_000)
    assert len(pieces) == bot_text.MOST_PIECES + 1
    assert pieces[-1] == "[959,040 more characters are in the session's file]"


def test_nothing_is_said_too():
    assert bot_text.pieces(" \n") == ["(no answer)"]


def test_announcements_are_one_line_and_bounded():
    event = PromptEvent("tool_start", tool="exec", args={"command": "ls\n-la " + "x" * 1000})
    line = bot_text.announcement(event)
    assert line.startswith("🔧 exec: ls -la x") and "\n" not in line and len(line) < 400
    assert bot_text.announcement(PromptEvent("tool_end", tool="exec")) == ""


def test_an_apology_says_whether_something_may_have_been_done():
    assert bot_text.apology(Failed("no luck", executed="no")) == "⚠️ no luck"
    assert bot_text.apology(Failed("no luck")) == "⚠️ no luck It may have been carried out in part."
    assert bot_text.apology(Cancelled("x", executed="no")) == "Stopped."


def test_status_names_the_layer_of_a_setting():
    info = SessionInfo("telegram:7", "travel", "", "", 3, 9, model="p/m", context_tokens=1234, cost=0.5)
    found = ConversationStatus("travel", "telegram:7", {"verbose": Setting(True, "channel")}, info, 2)
    assert bot_text.status(found).splitlines() == [
        "Agent: travel", "Session: telegram:7", "Prompts: 3, 1,234 tokens of context, $0.5000", "Model: p/m",
        "Verbose: on (from the channel)", "Running or waiting: 2",
    ]  # fmt: skip


# --- updates and what is kept ---------------------------------------------------------------------------


def test_an_update_that_can_not_be_read_is_kept_by_its_number():
    raw = b"""[{"update_id": 5, "message": {"chat": "no"}}, {"update_id": 6, "poll": {}},
      {"update_id": 7, "message": {"message_id": 1, "chat": {"id": 2, "type": "private"}, "new": 1,
       "from": {"id": 2, "is_bot": false}, "text": "hi"}}]"""
    found = bot_api.updates_of(bot_api.msgspec.Raw(raw))
    assert [(update.update_id, update.message and update.message.text) for update in found] == [
        (5, None), (6, None), (7, "hi"),
    ]  # fmt: skip


def test_an_inbox_keeps_messages_until_they_are_done(tmp_path):
    one, two = (Entry(n, 7, None, n * 2, "private", 7, "A", f"text {n}") for n in (1, 2))

    async def main():
        inbox = Inbox(tmp_path / "inbox.sqlite3")
        assert (await inbox.offset(), await inbox.open()) == (0, [])
        await inbox.take([one, two], 3)
        await inbox.take([one], 3)
        await inbox.begin(1)
        again = Inbox(tmp_path / "inbox.sqlite3")
        assert await again.offset() == 3
        assert [(entry.id, entry.text, entry.begun) for entry in await again.open()] == [
            (1, "text 1", True), (2, "text 2", False),
        ]  # fmt: skip
        await again.done(1)
        await again.take([], 0)
        assert (await again.offset(), [entry.id for entry in await again.open()]) == (0, [2])

    asyncio.run(main())
    assert (tmp_path / "inbox.sqlite3").stat().st_mode & 0o077 == 0
