"""The rules of the channels process, without processes: frames, turns, sessions, and llm's door."""

import asyncio
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beige.errors import Malformed, Overloaded
from beige.messages.llm import PromptEvent
from beige.messages.session_settings import SessionSettings
from beige.pluginhost.frames import Frame, Log, encode
from beige.sessions import check_id
from services.channels import frames
from services.channels.conversations import Conversations
from services.channels.lanes import ALL_HELD, HELD, WAITING, Lanes, Room
from services.llm import doors
from services.llm import service as llm_service

SENT = [
    frames.Loaded(),
    frames.AskPrompt(1, "c", "travel", "é" * 1000, "alice", True),
    frames.AskCancel(2, "-100123", ""),
    frames.AskNewSession(3, "a@b.c+d", ""),
    frames.AskStatus(4, "c", ""),
    frames.AskSettings(5, "c", "", SessionSettings(verbose=True), ["model"]),
    frames.Took(1),
    frames.Abandon(1),
    Log(20, "line"),
]


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_frames_survive_any_chunking(size):
    stream = b"".join(encode(frame) for frame in SENT)
    reader = frames.host_reader()
    assert [f for i in range(0, len(stream), size) for f in reader.feed(stream[i : i + size])] == SENT


@given(st.binary(max_size=100))
def test_garbage_is_malformed(data):
    try:
        found = frames.host_reader().feed(len(data).to_bytes(4, "big") + data)
    except Malformed:
        return
    assert all(isinstance(frame, Frame) for frame in found)


@pytest.mark.parametrize("conversation", ["", "a:b", "../x", "a/b", "a b", "a\n", "é", "x" * 65])
def test_a_conversations_name_can_be_no_path_and_no_other_session(conversation):
    with pytest.raises(Malformed):
        frames.host_reader().feed(encode(frames.AskCancel(1, conversation, "")))


def test_a_channel_can_not_send_the_hosts_frames():
    for frame in (
        frames.Event(1, PromptEvent("notice")),
        frames.Reply(1, b""),
        frames.Refused(1, "", "", ""),
    ):
        with pytest.raises(Malformed):
            frames.host_reader().feed(encode(frame))


@pytest.mark.parametrize("text", ["", "x" * (frames.MAX_TEXT + 1)])
def test_a_prompts_text_has_bounds(text):
    with pytest.raises(Malformed):
        frames.host_reader().feed(encode(frames.AskPrompt(1, "c", "", text, "", False)))


# --- turns --------------------------------------------------------------------------------------------


def test_prompts_of_a_conversation_run_one_by_one_in_order_and_others_beside_them():
    async def main():
        lanes, ran, release = Lanes(Room()), [], asyncio.Event()

        async def prompt(key, name):
            async with lanes.turn(key):
                ran.append(name)
                await release.wait()

        tasks = [asyncio.create_task(prompt(("a", "c"), n)) for n in range(WAITING + 1)]
        tasks.append(asyncio.create_task(prompt(("a", "d"), "other")))
        tasks.append(asyncio.create_task(prompt(("b", "c"), "other agent")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ran == [0, "other", "other agent"]
        assert lanes.busy(("a", "c")) == WAITING + 1
        with pytest.raises(Overloaded, match="wait already"):
            await prompt(("a", "c"), "too many")
        release.set()
        await asyncio.gather(*tasks)
        assert ran == [0, "other", "other agent", 1, 2, 3, 4]
        assert lanes.busy(("a", "c")) == 0

    asyncio.run(main())


def test_one_channel_holds_a_bounded_number_of_prompts_and_all_are_given_back():
    async def main():
        lanes, forever = Lanes(Room()), asyncio.Event()

        async def prompt(name):
            async with lanes.turn(("a", name)):
                await forever.wait()

        tasks = [asyncio.create_task(prompt(str(n))) for n in range(HELD)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="this channel has 32 prompts already"):
            await prompt("one more")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with lanes.turn(("a", "again")):
            pass

    asyncio.run(main())


def test_all_channels_together_leave_the_operators_room():
    assert ALL_HELD < llm_service.CAPACITY

    async def main():
        room, forever = Room(), asyncio.Event()
        channels = [Lanes(room) for _ in range(4)]

        async def prompt(lanes, name):
            async with lanes.turn(("a", name)):
                await forever.wait()

        tasks = [asyncio.create_task(prompt(lanes, str(n))) for lanes in channels[:3] for n in range(HELD)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="all channels together have 96"):
            await prompt(channels[3], "one more")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with channels[3].turn(("a", "again")):
            assert room.held == 1

    asyncio.run(main())


# --- sessions -----------------------------------------------------------------------------------------


def test_a_fresh_session_is_the_conversations_from_then_on_also_after_a_restart(tmp_path):
    async def main():
        mine = Conversations("rig", tmp_path / "rig.sqlite3")
        assert await mine.session("travel", "c") == "rig:c"
        fresh = await mine.renew("travel", "c")
        assert fresh.startswith("rig:c:")
        assert check_id(fresh) == fresh
        again = Conversations("rig", tmp_path / "rig.sqlite3")
        assert await again.session("travel", "c") == fresh
        assert await again.session("home", "c") == "rig:c"

    asyncio.run(main())


def test_the_longest_names_make_a_valid_session(tmp_path):
    async def main():
        name = await Conversations("x" * 32, tmp_path / "f").renew("a", "y" * 64)
        assert check_id(name) == name

    asyncio.run(main())


def test_fresh_sessions_are_bounded(tmp_path):
    async def main():
        mine = Conversations("rig", tmp_path / "rig.sqlite3", most=2)
        await mine.renew("a", "one")
        await mine.renew("a", "two")
        with pytest.raises(Overloaded):
            await mine.renew("a", "three")
        await mine.renew("a", "two")

    asyncio.run(main())
    with sqlite3.connect(tmp_path / "rig.sqlite3") as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (2,)
    db.close()


# --- llm's door ---------------------------------------------------------------------------------------


class Listed:
    agents = ("travel",)


@pytest.mark.parametrize(
    ("src", "channel", "agent", "reason"),
    [
        ("channels/0", "rig", "travel", ""),
        ("channels/0", "rig", "other", "channel 'rig' may not speak to agent 'other'"),
        ("channels/0", "cli", "travel", "there is no channel 'cli'"),
        ("channels/0", "", "travel", "there is no channel ''"),
        ("cli/0", "cli", "other", ""),
        ("gateway/0", "rig", "other", ""),
    ],
)
def test_only_listed_agents_are_spoken_to_through_a_channel(src, channel, agent, reason):
    assert doors.refusal(src, channel, agent, {"rig": Listed()}) == reason
