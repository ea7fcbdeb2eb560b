"""A list to choose from, over the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from beige.tui.clean import one_line


class Pick(ModalScreen[str]):
    """The chosen value, or "" after Esc."""

    BINDINGS: ClassVar = [("escape", "dismiss('')", "Back")]

    def __init__(self, title: str, choices: Sequence[tuple[str, str]]) -> None:
        """`choices`: value and how it is shown."""
        super().__init__()
        self._title, self._choices = title, choices

    def compose(self) -> ComposeResult:
        with Vertical(id="pick"):
            yield Static(Content(one_line(self._title, 70)), markup=False)
            yield OptionList(*(Option(Content(one_line(shown, 100))) for _, shown in self._choices))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index][0])
