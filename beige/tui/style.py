"""How it looks. States are told in words too: a terminal may have no colours."""

CSS = """
Screen { layout: vertical; }
#transcript { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
#status { height: 1; padding: 0 1; background: $panel; color: $text; text-wrap: nowrap; }
#editor { height: auto; min-height: 1; max-height: 10; border: none; padding: 0 1; }
.said { margin: 1 0 0 0; padding: 0 1; border-left: thick $primary; text-style: bold; }
.note { color: $text-muted; margin: 0 0 0 1; }
.note.error { color: $text-error; text-style: bold; }
.answer { padding: 0; margin: 0; height: auto; }
Words { padding: 0 0 0 1; margin: 0; }
.answer.void { opacity: 50%; text-style: strike; }
Collapsible { border-top: none; padding: 0; margin: 0; background: transparent; }
Collapsible Contents { padding: 0 0 0 3; }
.tool.running CollapsibleTitle { color: $text-primary; }
.tool.failed CollapsibleTitle { color: $text-warning; }
.tool.denied CollapsibleTitle { color: $text-error; text-style: bold; }
.thinking { color: $text-muted; }
Pick { align: center middle; }
#pick { width: 90%; max-width: 100; height: auto; max-height: 80%; }
#pick { border: round $primary; background: $surface; }
#pick OptionList { height: auto; max-height: 20; border: none; }
"""
