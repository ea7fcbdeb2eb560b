import asyncio
from contextlib import aclosing

import pytest

from beige.errors import ConfigError
from services.llm.conversation import Assistant, Prompt, Text, ToolCall, ToolResult
from services.llm.events import MessageDone, TextDelta
from services.llm.providers.base import ModelRequest
from services.llm.providers.script import NO_SCRIPT, THE_END, Call, parse
from services.llm.providers.scripted import Scripted
from services.llm.tools import SPECS

WORK = """[
  // a comment, as JSON5 allows
  { say: "I write it.", tool: "write", args: { path: "a.sh", content: "echo {{prompt}}" } },
  { tool: "exec", args: { command: "sh a.sh", timeout_s: 5 } },
  { wait: 0.5 },
  { expect: "exit code 0", else: "It failed: {{last.stderr}}" },
  { say: "It printed {{last.stdout}} ({{ last.exit_code }})." },
  { say: "Second prompt: {{prompt}}." },
]"""


def prompt(text="hi"):
    return Prompt(text=text)


def answered(stop="end_turn"):
    return Assistant(model="scripted/x", content=[Text("...")], stop_reason=stop, scripted=True)


def ran(code=0, stdout="", stderr=""):
    content = [Text(f"exit code {code}")]
    content += [Text(f"{name}:\n{text}") for name, text in (("stdout", stdout), ("stderr", stderr)) if text]
    return ToolResult(tool_id="t", tool="exec", content=content, exit_code=code)


def say(text, *conversation):
    return parse(text, "demo.json5").next_answer(conversation)


def test_a_step_is_an_answer_and_the_next_follows_the_results():
    first = say(WORK, prompt("world"))
    assert first.say == "I write it."
    assert first.calls == (Call("write", {"path": "a.sh", "content": "echo world"}),)
    second = say(WORK, prompt(), answered("tool_use"), ran())
    assert second.calls == (Call("exec", {"command": "sh a.sh", "timeout_s": 5}),)
    third = say(WORK, prompt(), answered(), ran(), answered(), ran(0, "hello\n"))
    assert (third.say, third.calls, third.wait_s) == ("It printed hello (0).", (), 0.5)


def test_the_next_prompt_goes_on_where_the_script_stood():
    before = (prompt(), answered(), ran(), answered(), ran(), answered())
    assert say(WORK, *before, prompt("more")).say == "Second prompt: more."
    assert say(WORK, *before, prompt("more"), answered(), prompt("again")).say == THE_END


def test_an_answer_that_was_cut_off_is_given_again():
    assert say(WORK, prompt(), answered("cancelled"), prompt("again")).say == "I write it."


def test_a_missed_expectation_says_so_and_calls_nothing():
    answer = say(WORK, prompt(), answered(), ran(), answered(), ran(2, stderr="no such file\n"))
    assert (answer.say, answer.calls) == ("It failed: no such file", ())


def test_several_tools_in_one_step_are_parallel_calls():
    text = '[{ tools: [{ tool: "read", args: { path: "a" } }, { tool: "exec", args: { command: "ls" } }] }]'
    assert [call.tool for call in say(text, prompt()).calls] == ["read", "exec"]


NAMED = """{ scripts: [
  { name: "greet", when: "^(hi|hello)", steps: [{ say: "one" }, { say: "two" }] },
  { name: "work", when: "work", steps: [{ say: "busy" }] },
] }"""


def test_the_prompt_chooses_the_script_and_each_keeps_its_place():
    assert say(NAMED, prompt("hello")).say == "one"
    assert say(NAMED, prompt("hello"), answered(), prompt("please work")).say == "busy"
    assert say(NAMED, prompt("hello"), answered(), prompt("work"), answered(), prompt("hi")).say == "two"
    assert say(NAMED, prompt("else")).say == NO_SCRIPT


def test_what_a_variable_holds_is_not_filled_in_again():
    """A command's output can't make the script reveal or do anything else."""
    answer = say(
        '[{ tool: "exec" }, { say: "{{last.stdout}}" }]', prompt("p"), answered(), ran(0, "{{prompt}}")
    )
    assert answer.say == "{{prompt}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{ say: ", "is not JSON5"),
        ("42", "Expected `object`"),
        ('[{ sey: "x" }]', "unknown field `sey`"),
        ("[{ say: 5 }]", "$.scripts[0].steps[0].say"),
        ("[{}]", "steps[0]: does nothing"),
        ('[{ say: "x", args: {} }, { say: "y", args: { a: 1 } }]', "steps[1]: has args but no tool"),
        ('[{ say: "{{last.sdtout}}" }]', "{{last.sdtout}} is unknown"),
        ('[{ tool: "exec", args: { a: ["{{nope}}"] } }]', "{{nope}} is unknown"),
        ('[{ expect: "(", say: "x" }]', "steps[0].expect: is not a regular expression"),
        ('{ scripts: [{ name: "n", when: "(", steps: [] }] }', "n.when: is not a regular expression"),
        ('[{ say: "x" }, { wait: 1 }]', "ends with wait or expect"),
        ("[{ wait: -1 }]", "$.scripts[0].steps[0].wait"),
    ],
)
def test_a_wrong_script_is_refused_with_its_place(text, said):
    with pytest.raises(ConfigError) as raised:
        parse(text, "demo.json5")
    assert str(raised.value).startswith("demo.json5") and said in str(raised.value)


def test_a_missing_script_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        Scripted(tmp_path / "none.json5")


def test_a_script_is_streamed_like_a_model_and_never_named_like_one(tmp_path):
    path = tmp_path / "demo.json5"
    path.write_text('[{ say: "one two  three\\n", tools: [{ tool: "exec", args: { command: "ls" } }] }]')

    async def run():
        provider = Scripted(path)
        request = ModelRequest(model="gpt-5", system="", messages=[prompt()], tools=SPECS)
        async with aclosing(provider.stream(request)) as events:
            return provider, [event async for event in events]

    provider, events = asyncio.run(run())
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["one ", "two  ", "three\n"]
    message = events[-1].message
    assert isinstance(events[-1], MessageDone) and provider.scripted
    assert (message.model, message.scripted, message.stop_reason) == ("scripted/gpt-5", True, "tool_use")
    assert message.content == [Text("one two  three\n"), ToolCall("script_1_0", "exec", {"command": "ls"})]
