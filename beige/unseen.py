"""Names the characters that a reader doesn't see, or sees in another place; and hides them in JSON.

They reorder text or take no room in it: two names that look the same, a command that reads otherwise. The
joiners are among them, although emoji and some scripts need them: what an agent named must be seen as it is.
"""

from __future__ import annotations

import re

UNSEEN = (
    r"\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""For a character class of a regular expression. Surrogates too: no encoder takes them."""
_IN_JSON = re.compile(rf"[\x7f-\x9f{UNSEEN}]")
"""What a JSON encoder leaves as it is, and C1: some terminals obey it."""


def escape_json(encoded: bytes) -> bytes:
    """A JSON document that says the same in characters that people can be shown."""
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return _IN_JSON.sub(lambda found: _escaped(ord(found[0])), encoded.decode()).encode()


def _escaped(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + ((code - 0x10000) >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def text_of(text: str) -> str:
    """`text` that any encoder takes: halves of surrogate pairs joined, a single one as U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
