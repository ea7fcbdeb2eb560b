"""An agent, a model or a file name tries to drive the operator's terminal, or to forge what it shows.

Everything foreign is shown by the real widgets; what a terminal would get is read back cell by cell.
"""

import asyncio
import unicodedata

import pytest
from textual.app import App
from textual.widgets import OptionList

from beige.tui import export
from beige.tui.answer import LIMIT, Answer
from beige.tui.editor import Editor
from beige.tui.events import TurnEvent
from beige.tui.pick import Pick
from beige.tui.status import Status
from beige.tui.style import CSS
from beige.tui.transcript import MOST_BLOCKS, Transcript

HOSTILE = {
    "clear screen": "a\x1b[2J\x1b[Hb",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "title": "\x1b]0;owned\x1b\\",
    "link": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "c1": "\x9b2J\x9d52;c;x\x9c",
    "overwrite": "safe\rdanger\x08\x08",
    "bell and nul": "\x07\x00\x0e",
    "bidi": "user\u202e\u2066 // admin\u2069 \u200f\u061c",
    "isolate": "\u2067x\u2068y",
    "invisible": "pass\u200bword\ufeff\u2060",
    "lines": "one\u2028two\u2029three\x85four\x0bfive",
    "tags": "\U000e0041\U000e0042",
    "markup": "[bold red]x[/] [@click=app.quit]quit[/] [link=http://evil]y[/link] [/]",
    "console markup": "[[red]] \\[bold] [$error]z",
    "html": "<script>x</script><b>y</b> &#27;[2J &#x202e;",
}
PLACES = {
    "answer": lambda text: [TurnEvent("text_delta", text=text)],
    "fence": lambda text: [TurnEvent("text_delta", text=f"```{text}\n{text}\n```\n")],
    "inline code": lambda text: [TurnEvent("text_delta", text=f"`{text}`")],
    "table": lambda text: [TurnEvent("text_delta", text=f"| {text} |\n|---|\n| {text} |\n")],
    "heading": lambda text: [TurnEvent("text_delta", text=f"# {text}\n\n- {text}\n\n> {text}\n")],
    "link": lambda text: [TurnEvent("text_delta", text=f"[{text}](http://x/{text}) ![{text}](y)")],
    "thinking": lambda text: [TurnEvent("thinking_delta", text=text)],
    "prompt": lambda text: [TurnEvent("prompt", text=text)],
    "notice": lambda text: [TurnEvent("notice", text=text)],
    "fallback": lambda text: [TurnEvent("model_fallback", text=text, model=text)],
    "command": lambda text: [TurnEvent("tool_start", tool_id="1", tool="exec", args={"command": text})],
    "argument": lambda text: [TurnEvent("tool_start", tool_id="1", tool=text, args={text: text + "\n" * 2})],
    "output": lambda text: [
        TurnEvent("tool_start", tool_id="1", tool="exec", args={"command": "cat x"}),
        *(TurnEvent("tool_output", tool_id="1", stream="stdout", text=piece) for piece in text),
    ],
    "denial": lambda text: [
        TurnEvent("tool_start", tool_id="1", tool="exec", args={"path": text}),
        TurnEvent("tool_end", tool_id="1", tool="exec", is_error=True, text=f"denied: {text}"),
    ],
}  # fmt: skip


class Show(App):
    CSS = CSS

    def __init__(self):
        super().__init__()
        self.transcript, self.editor = Transcript(), Editor()
        self.opened = []

    def compose(self):
        self.transcript.verbose = True
        yield self.transcript
        yield self.editor

    def open_url(self, url, *, new_tab=True):
        self.opened.append(url)


def cells(app):
    """Everything on the screen, as text."""
    return "\n".join(
        "".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()
    )


def assert_harmless(shown):
    """No character that a terminal acts on, that reorders others, or that can't be seen."""
    odd = {c for c in shown if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert odd == set()


def on_screen(steps, size=(100, 40)):
    async def run():
        app = Show()
        async with app.run_test(size=size, notifications=True) as pilot:
            await steps(app, pilot)
            await pilot.pause()
            return cells(app), app

    return asyncio.run(run())


@pytest.mark.parametrize("place", PLACES)
def test_nothing_hostile_reaches_the_terminal_wherever_it_stands(place):
    async def steps(app, pilot):
        for text in HOSTILE.values():
            await app.transcript.show(PLACES[place](text))
            await app.transcript.end_turn("over")
        assert len(app.transcript.children) >= len(HOSTILE)

    assert_harmless(on_screen(steps, (100, 300))[0])


def test_the_check_itself_sees_an_escape():
    """Control: the same text given to a widget as it is would be found."""
    with pytest.raises(AssertionError):
        assert_harmless(HOSTILE["clear screen"])
    for text in ("bidi", "invisible", "lines", "tags", "c1"):
        with pytest.raises(AssertionError):
            assert_harmless(HOSTILE[text])


@pytest.mark.parametrize("place", ["answer", "thinking", "prompt", "notice", "command", "output", "denial"])
def test_markup_is_shown_as_it_is_written(place):
    text = "[bold red]x[/] [@click=app.quit]quit[/]"

    async def steps(app, pilot):
        await app.transcript.show(PLACES[place](text))
        for block in app.query("Folded"):
            block.collapsed = False

    shown, app = on_screen(steps)
    assert text in shown
    assert app.return_code == 0 or app.return_code is None


def test_a_session_list_and_a_status_line_of_hostile_names():
    async def steps(app, pilot):
        for text in HOSTILE.values():
            await app.push_screen(Pick(text, [(text, f"{text} ({text})")]))
            await pilot.pause()
            assert app.screen.query_one(OptionList).option_count == 1
            assert_harmless(cells(app))
            await pilot.press("escape")

    on_screen(steps)
    for text in HOSTILE.values():
        status = Status(agent=text, connection="connected")
        status.session_is(text, text, text)
        status.saw(TurnEvent("model_fallback", text=text, model=text + "x"))
        for width in (10, 80, 300):
            assert_harmless(status.line(width))


def test_an_escape_cut_into_pieces_is_none_either():
    async def steps(app, pilot):
        for character in HOSTILE["clipboard"]:
            await app.transcript.show([TurnEvent("text_delta", text=character)])

    shown, _ = on_screen(steps)
    assert_harmless(shown)
    assert "52;c;" in shown


def test_no_click_opens_what_a_model_wrote():
    async def steps(app, pilot):
        await app.transcript.show([TurnEvent("text_delta", text="[press me](http://evil/x) and more")])
        await pilot.pause()
        paragraph = app.query_one("MarkdownParagraph")
        await pilot.click(paragraph, offset=(3, 0))
        async with asyncio.timeout(30):
            while "this link leads to: http://evil/x" not in " ".join(cells(app).split()):
                await pilot.pause()

    _, app = on_screen(steps)
    assert app.opened == []


def test_pasted_escapes_are_text_and_pasted_lines_are_not_sent():
    from textual import events

    async def steps(app, pilot):
        app.editor.focus()
        app.editor.post_message(events.Paste("ls\r\n\x1b[2Jrm -rf /\n/quit\n"))
        await pilot.pause()
        assert app.editor.text == "ls\n\\x1b[2Jrm -rf /\n/quit\n"

    assert_harmless(on_screen(steps)[0])


BOMBS = {
    "quotes": ">" * 5000 + " x",
    "lists": "\n".join("  " * n + "- x" for n in range(300)),
    "emphasis": "*" * 20_000,
    "brackets": "[" * 20_000,
    "links": "[a](" * 5000,
    "table": "|" * 5000 + "\n" + "|-" * 2500 + "\n",
    "fences": "```\n" * 3000,
    "html": "<" * 20_000,
    "one line": "x" * 100_000,
    "zalgo": "a" + "\u0301" * 20_000,
    "images": "![](" * 3000 + ")" * 3000,
    "footnotes": "[^1]: " * 3000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_markdown_ends_nothing(name):
    """What the Markdown widget can't take is shown plain, and the client goes on."""

    async def steps(app, pilot):
        text = BOMBS[name]
        for at in range(0, len(text), 4096):
            await app.transcript.show([TurnEvent("text_delta", text=text[at : at + 4096])])
        await app.transcript.show([TurnEvent("message_end"), TurnEvent("notice", text="still here")])
        await pilot.pause()

    assert "still here" in on_screen(steps)[0]


def test_a_long_answer_of_an_ordinary_model_is_laid_out_whether_it_comes_at_once_or_in_pieces():
    """Control of the bounds: they don't take Markdown from those who mean well."""
    text = "# Title\n\n" + "\n\n".join(f"Paragraph **{n}** " + "of some words " * 9 for n in range(100))
    text += "\n\n```python\n" + "print('x')\n" * 400 + "```\n\nThe **end**.\n"

    async def steps(app, pilot):
        for pieces in ([text], [text[at : at + 500] for at in range(0, len(text), 500)]):
            await app.transcript.show([TurnEvent("text_delta", text=piece) for piece in pieces])
            await app.transcript.show([TurnEvent("message_end")])
            await pilot.pause()
            assert "**" not in cells(app) and "The end." in cells(app)

    on_screen(steps)


def test_an_endless_answer_and_an_endless_output_are_bounded():
    async def steps(app, pilot):
        await app.transcript.show([TurnEvent("text_delta", text="word\n\n" * 100)])
        await app.transcript.show([TurnEvent("text_delta", text="x" * (LIMIT + 50_000))])
        assert len(app.query_one(Answer).said) < LIMIT + 200
        await app.transcript.show(PLACES["command"]("yes"))
        for _ in range(40):
            await app.transcript.show([TurnEvent("tool_output", tool_id="1", text="y\n" * 50_000)])
        await app.transcript.show([TurnEvent("tool_end", tool_id="1", exit_code=0)])
        notes = [TurnEvent("notice", text=f"note {n}") for n in range(MOST_BLOCKS + 20)]
        await app.transcript.show(notes)
        assert len(app.transcript.children) == MOST_BLOCKS

    assert f"note {MOST_BLOCKS + 19}" in on_screen(steps)[0]


def test_an_export_is_harmless_to_cat():
    entries = [{"type": "prompt", "text": text} for text in HOSTILE.values()]
    assert_harmless(export.markdown("a", "s", entries).replace("\t", " "))
