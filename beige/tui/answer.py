"""An answer as it is written: Markdown, with what a model could abuse of it taken out."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownFence

from beige.cli.terminal import safe
from beige.tui.clean import clean

LIMIT = 200_000
"""Characters of an answer that are shown; /export has all of it."""
MARKDOWN_LIMIT, LINE_LIMIT, MOST_WIDGETS, DEEPEST = 60_000, 8_000, 300, 60
"""What is laid out as Markdown at most: characters, those of one line, widgets, indentation and quotes."""
SLICE, PLAIN_PIECE = 500, 8_000
"""Characters that are added at once; those of a plain widget."""
_DEEP = re.compile(r"(?m)^[ \t>]+")
HIGHLIGHT_LIMIT = 20_000
"""Characters of a code block that are coloured: it is done anew with each piece that arrives."""
LANGUAGES = frozenset(
    "bash sh shell console c cpp css diff docker go html ini java javascript js json json5 jsx kotlin lua "
    "make markdown md perl php python py python3 ruby rust scala sql swift toml ts tsx typescript xml yaml "
    "yml".split()
)
"""Those whose lexers are known to be well behaved: the model names the language, and a lexer is a set of
regular expressions that runs in this process."""


class Fence(MarkdownFence):
    """A code block, coloured if it is short and in a known language."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        known = language.strip().lower()
        if known not in LANGUAGES or len(code) > HIGHLIGHT_LIMIT:
            return Content("\n".join(code.splitlines()))
        return super().highlight(code, known, ansi, dark)


def parser() -> MarkdownIt:
    """Raw HTML is text: a reader must see it. Images are links, and no link is ever followed."""
    markdown = MarkdownIt("gfm-like", {"html": False})
    markdown.core.ruler.push("clean", _clean_tokens)
    return markdown


def _clean_tokens(state: StateCore) -> None:
    """Cleans what Markdown itself made: `&#x202e;` becomes a character only here
    (`test_nothing_hostile_reaches_the_terminal_wherever_it_stands`)."""
    for token in state.tokens:
        for child in token.children or ():
            child.content = safe(child.content)
            for alternative in child.children or ():
                alternative.content = safe(alternative.content)


class Answer(Vertical):
    """Markdown as long as that is quick; what comes after it, or what the widget chokes on, is plain."""

    def __init__(self) -> None:
        super().__init__(classes="answer")
        self.said = ""
        """All of it that is shown."""
        self._markdown: Markdown | None = Words(parser_factory=parser, open_links=False)
        self._plain = ""
        self._last = Static("", markup=False)

    def compose(self) -> ComposeResult:
        if self._markdown is not None:
            yield self._markdown

    async def add(self, text: str) -> None:
        """Show `text` behind what is there."""
        room = LIMIT - len(self.said)
        if room <= 0:
            return
        piece = clean(text, room)
        if len(text) > room:
            piece += "\n\n[the rest is not shown here; /export has it]"
        for at in range(0, len(piece), SLICE):
            await self._add(piece[at : at + SLICE])

    async def _add(self, piece: str) -> None:
        line = self.said.rpartition("\n")[2] + piece
        self.said += piece
        if self._markdown is not None and not self._quick(self._markdown, line):
            self._markdown = None
        if self._markdown is None:
            await self._add_plain(piece)
            return
        try:
            await self._markdown.append(piece)
        except Exception:  # a widget's bug over a hostile text must not end the whole client
            await self._markdown.remove()
            self._markdown = None
            await self._add_plain(self.said)

    def _quick(self, markdown: Markdown, lines: str) -> bool:
        """Each piece costs parsing the last block anew, and each block a widget. `lines`: the last line
        that was shown, and what comes."""
        return (
            len(self.said) <= MARKDOWN_LIMIT
            and max(map(len, lines.split("\n"))) <= LINE_LIMIT
            and sum(1 for _ in markdown.walk_children()) <= MOST_WIDGETS
            and max((len(run[0]) for run in _DEEP.finditer(lines)), default=0) <= DEEPEST
        )

    async def _add_plain(self, text: str) -> None:
        """In widgets of a bounded size, so that a long text isn't laid out anew with each piece."""
        if not self._plain or len(self._plain) > PLAIN_PIECE:
            self._plain, self._last = "", Static("", markup=False)
            await self.mount(self._last)
        self._plain += text
        self._last.update(Content(self._plain))


class Words(Markdown):
    """The Markdown widget; a click on a link says where it leads, and opens nothing."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence}

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        event.stop()
        self.notify(f"this link leads to: {clean(event.href, 500)}", markup=False)
