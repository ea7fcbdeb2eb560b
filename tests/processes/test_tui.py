"""Every command and key of the terminal UI, with a real gateway, llm, policy and audit behind it."""

import pytest
from textual.widgets import OptionList

from beige.tui.blocks import ToolCall
from tests.processes.tui_stage import CLAUDE, GLM, at_the_terminal, new_tui_stage
from tests.simulator.replies import Refusal, Tool, reply


@pytest.fixture(scope="module")
def running():
    with new_tui_stage() as stage:
        yield stage


@pytest.fixture
def stage(running):
    running.simulator.reset()
    running.start([name for name in ("llm", "gateway") if name not in running.house.processes])
    return running


def test_a_turn_with_its_tool_calls_from_the_prompt_to_the_answer(stage):
    async def steps(user):
        await user.ready()
        await user.says("go")
        await user.sees("It says hello.")
        await user.ready()
        assert "█ go" in user.screen
        assert "scripted model: a script file speaks here" in user.words
        titles = [str(call._title.label) for call in user.app.query(ToolCall)]
        assert titles[0].startswith("write a.txt — done, ")
        assert titles[1].startswith("exec cat a.txt — exit code 0, ")
        assert all(call.collapsed for call in user.app.query(ToolCall))
        await user.press("shift+tab", "enter")
        await user.sees("hello")
        assert "scripted/m" in user.words
        await user.press("tab")
        await user.says("second")
        await user.sees("You said: second")

    at_the_terminal(stage, steps)


def test_live_output_then_escape_cancels_the_turn_and_the_command(stage):
    async def steps(user):
        await user.ready()
        await user.says("/verbose on")
        await user.sees("verbose is on")
        await user.says("go")
        await user.sees("waiting")
        assert "running" in user.words and "working" in user.words
        assert "exit code" not in user.words
        await user.says("never sent")
        await user.sees("1 queued")
        await user.press("escape")
        await user.sees("1 waiting prompts dropped")
        await user.ready()
        await user.sees("— cancelled")

    at_the_terminal(stage, steps, agent="slow")
    (path,) = (stage.home.sessions / "slow").glob("*.jsonl")
    assert "never sent" not in path.read_text()
    assert '"outcome":"cancelled"' in path.read_text()


def test_prompts_written_during_a_turn_follow_it_in_order(stage):
    stage.simulator.answer(
        reply("", Tool("exec", {"command": "true"})), reply("one"), reply("two"), reply("three")
    )

    async def steps(user):
        await user.ready()
        for text in ("first", "second", "third"):
            await user.says(text)
        await user.sees("three")
        await user.ready()

    at_the_terminal(stage, steps, agent="pair")
    asked = [request.body["messages"][-1]["content"] for request in stage.simulator.requests]
    assert ["first" in str(asked[0]), "second" in str(asked[-2]), "third" in str(asked[-1])] == [True] * 3


def test_a_fallback_is_shown_with_its_reason_and_in_the_status_line(stage):
    stage.simulator.answer(Refusal(529, "overloaded_error", "Overloaded"), reply("from the other one"))

    async def steps(user):
        await user.ready()
        assert CLAUDE in user.words
        await user.says("go")
        await user.sees("from the other one")
        await user.sees(f"trying with {GLM}")
        await user.sees(f"{GLM} (for {CLAUDE})")

    at_the_terminal(stage, steps, agent="pair", size=(140, 40))


def test_context_and_tokens_are_counted(stage):
    stage.simulator.answer(reply("hello"))

    async def steps(user):
        await user.ready()
        await user.says("go")
        await user.sees("/200.0k")
        assert "context 40/200.0k · in 25 out 15" in user.words

    at_the_terminal(stage, steps, agent="pair", size=(140, 40))


def test_markdown_and_a_code_block_are_laid_out_while_they_are_written(stage):
    text = "# Title\n\nSome **bold** words.\n\n```python\nprint('x')\n```\n\n- one\n- two\n"
    stage.simulator.answer(reply(text))

    async def steps(user):
        await user.ready()
        await user.says("go")
        await user.sees("two")
        await user.ready()
        assert "**" not in user.screen and "```" not in user.screen
        assert len(user.app.query("Fence")) == 1
        assert "• one • two" in user.words

    at_the_terminal(stage, steps, agent="pair")


def test_streaming_off_shows_the_answer_when_it_is_complete(stage):
    stage.simulator.answer(reply("all at once"))

    async def steps(user):
        await user.ready()
        await user.app.api.settings(*user.app._desk._where, {"streaming": False})
        await user.says("/verbose off")
        await user.sees("verbose is off")
        assert user.app.transcript.streaming is False
        await user.says("go")
        await user.sees("all at once")

    at_the_terminal(stage, steps, agent="pair")


def test_settings_are_kept_for_the_session_and_shown_with_their_layer(stage):
    kept = {}

    async def steps(user):
        await user.ready()
        kept["session"] = user.app.status.session
        await user.says("/v on")
        await user.sees("verbose is on")
        await user.says("/thinking high")
        await user.sees("thinking level is high")
        await user.says(f"/model {GLM}")
        await user.sees(f"{GLM} is asked first")
        await user.says("/status")
        await user.sees("verbose on (session)")
        await user.sees("streaming on (system)")
        await user.sees(f"model {GLM} (session)")
        await user.says("/model other/one")
        await user.sees("is not one of the agent's models")

    at_the_terminal(stage, steps, agent="pair")
    key = f"pair/{kept['session']}"
    assert stage.settings()[key] == {"verbose": True, "thinkingLevel": "high", "model": GLM}

    async def again(user):
        await user.ready()
        assert user.app.transcript.verbose
        await user.says("/model default")
        await user.sees(f"{CLAUDE} is asked first")
        await user.says("/thinking default")
        await user.sees("thinking level is default")

    at_the_terminal(stage, again, agent="pair", session=kept["session"])
    assert stage.settings()[key] == {"verbose": True}


def test_model_without_a_name_lists_the_agents_own(stage):
    async def steps(user):
        await user.ready()
        await user.says("/model")
        await user.until(lambda: user.app.screen.query(OptionList), "the list")
        assert CLAUDE in user.words and GLM in user.words
        await user.press("down", "down", "enter")
        await user.sees(f"{GLM} is asked first")

    at_the_terminal(stage, steps, agent="pair")


def test_new_sessions_resume_and_their_history(stage):
    async def steps(user):
        await user.ready()
        first = user.app.status.session
        await user.says("go")
        await user.sees("It says hello.")
        await user.ready()
        await user.says("/new")
        await user.until(lambda: user.app.status.session != first, "another session")
        await user.ready()
        assert "It says hello." not in user.words
        await user.says("/resume")
        await user.until(lambda: user.app.status.session == first, "the first session")
        await user.sees("It says hello.")
        await user.sees("exec cat a.txt — exit code 0")
        await user.press("up")
        assert user.app.editor.text == "/resume" or user.app.editor.text == "go"
        user.app.editor.text = ""
        await user.says("/new")
        await user.until(lambda: user.app.status.session != first, "another session")
        await user.ready()
        await user.says("/sessions")
        await user.until(lambda: user.app.screen.query(OptionList), "the list")
        assert first in user.words and " go " in user.words
        await user.press("escape")
        await user.says(f"/resume {first}")
        await user.sees("It says hello.")
        await user.says("more")
        await user.sees("You said: more")

    at_the_terminal(stage, steps)


def test_another_agent(stage):
    async def steps(user):
        await user.ready()
        await user.says("/agent pair")
        await user.until(lambda: user.app.status.agent == "pair", "the other agent")
        await user.says("/agent nobody")
        await user.sees("there is no agent nobody")
        await user.says("/agent")
        await user.until(lambda: user.app.screen.query(OptionList), "the list")
        await user.press("down", "enter")
        await user.until(lambda: user.app.status.agent == "travel", "the chosen agent")

    at_the_terminal(stage, steps)


def test_export_writes_the_session(stage, tmp_path):
    target = tmp_path / "out.md"

    async def steps(user):
        await user.ready()
        await user.says("go")
        await user.sees("It says hello.")
        await user.ready()
        await user.says(f"/export {target}")
        await user.sees("written to")
        await user.says(f"/export {target}")
        await user.sees("File exists")

    at_the_terminal(stage, steps, size=(200, 40))
    text = target.read_text()
    assert "### Tool call: exec" in text and "It says hello." in text


def test_help_and_wrong_commands(stage):
    async def steps(user):
        await user.ready()
        await user.says("/help")
        await user.sees("/verbose on|off")
        await user.sees("Esc")
        await user.says("/hlep")
        await user.sees("did you mean /help?")
        await user.says("/cancel")
        await user.says("/compact")

    at_the_terminal(stage, steps)


def test_many_lines_history_and_keys(stage):
    async def steps(user):
        await user.ready()
        editor = user.app.editor
        await user.press("a", "backslash", "enter", "x", "backspace", "backspace", "ctrl+j", "b")
        assert editor.text == "a\nb"
        await user.press("enter")
        await user.sees("scripted model")
        await user.ready()
        await user.press("d", "up")
        assert editor.text == "a\nb"
        await user.press("up", "up", "down", "down", "down")
        assert editor.text == "d"
        await user.press("pageup", "pagedown")

    at_the_terminal(stage, steps)


def test_ctrl_c_leaves_only_the_second_time_in_a_row(stage):
    async def steps(user):
        await user.ready()
        await user.press("ctrl+c")
        await user.sees("Ctrl-C again leaves")
        await user.press("x", "backspace", "ctrl+c")
        assert user.app.is_running and not user.app._exit
        await user.press("ctrl+c")
        await user.until(lambda: user.app._exit, "the end")

    assert at_the_terminal(stage, steps).return_code == 0


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (20, 6), (200, 60)])
def test_it_fits_the_terminal_and_what_it_becomes(stage, size):
    async def steps(user):
        await user.ready()
        await user.says("go")
        await user.until(lambda: not user.app.turns.running, "the end")
        for width, height in (size, (80, 24), (30, 10), size):
            await user.pilot.resize_terminal(width, height)
            await user.pilot.pause()
            lines = user.screen.split("\n")
            assert len(lines) == height
            assert any("ready" in line for line in lines)

    at_the_terminal(stage, steps, size=size)


def test_a_wrong_token_and_a_narrow_one_are_told(stage):
    async def steps(user):
        await user.until(lambda: "oken" in user.words, "a word about the token")

    at_the_terminal(stage, steps, token="beige_" + "x" * 43)
    narrow = stage.new_token("narrow", agents=("pair",), scopes=("read",))

    async def read_only(user):
        await user.sees("scope")

    at_the_terminal(stage, read_only, token=narrow, agent="pair")


def test_a_turn_that_is_running_is_followed_by_who_comes_later(stage):
    session = "20261129-000000-abcdabcd"

    async def first(user):
        await user.ready()
        await user.says("go")
        await user.sees("working")
        await user.sees("exec")

    at_the_terminal(stage, first, agent="slow", session=session)

    async def later(user):
        await user.sees("working")
        stage.go()
        await user.sees("Now it is done.")
        await user.ready()
        assert user.words.count("This takes a while.") == 1

    try:
        at_the_terminal(stage, later, agent="slow", session=session)
    finally:
        (stage.work / "slow" / "go").unlink(missing_ok=True)


def test_a_killed_gateway_is_noticed_and_the_turn_is_read_from_its_file(stage):
    async def steps(user):
        await user.ready()
        await user.says("/v on")
        await user.sees("verbose is on")
        await user.says("go")
        await user.sees("waiting")
        stage.house.kill("gateway")
        await user.sees("reconnecting")
        await user.sees("connection lost")
        stage.start(["gateway"])
        await user.sees("the gateway was restarted")
        await user.ready()
        await user.sees("This takes a while.")

    at_the_terminal(stage, steps, agent="slow", url=f"unix://{stage.home.http_socket}")


def test_escape_ends_the_watching_of_a_turn_whose_gateway_is_away(stage):
    async def steps(user):
        await user.ready()
        await user.says("go")
        await user.sees("exec")
        stage.house.kill("gateway")
        await user.sees("reconnecting")
        await user.press("escape")
        await user.sees("no longer watched")
        await user.until(lambda: not user.app.turns.running, "no turn")

    at_the_terminal(stage, steps, agent="slow", url=f"unix://{stage.home.http_socket}")


def test_older_turns_are_summarised_when_asked_and_the_session_goes_on(stage):
    stage.simulator.answer(reply("one"), reply("two"), reply("They counted to two."), reply("three"))

    async def steps(user):
        await user.ready()
        for said, answer in (("first", "one"), ("second", "two")):
            await user.says(said)
            await user.sees(answer)
            await user.ready()
        await user.says("/compact keep the numbers")
        await user.sees("are now a summary: They counted to two.")
        await user.says("third")
        await user.sees("three")

    at_the_terminal(stage, steps, agent="pair")
    asked = str(stage.simulator.requests[2].body)
    assert "keep the numbers" in asked
    assert "They counted to two." in str(stage.simulator.requests[3].body)


def test_a_restarted_gateway_is_noticed_while_nothing_runs(stage):
    async def steps(user):
        await user.ready()
        assert stage.house.stop("gateway") == 0
        await user.says("lost on the way")
        await user.sees("Up brings the prompt back")
        await user.press("up")
        assert user.app.editor.text == "lost on the way"
        user.app.editor.text = ""
        await user.sees("the gateway is away")
        await user.sees("offline")
        stage.start(["gateway"])
        await user.sees("the gateway is there again")
        await user.says("go")
        await user.sees("It says hello.")

    at_the_terminal(stage, steps, url=f"unix://{stage.home.http_socket}")


def test_a_client_that_starts_before_the_gateway_waits_for_it(stage):
    stage.house.stop("gateway")

    async def steps(user):
        await user.sees("no gateway at")
        stage.start(["gateway"])
        await user.ready()

    at_the_terminal(stage, steps, url=f"unix://{stage.home.http_socket}")
