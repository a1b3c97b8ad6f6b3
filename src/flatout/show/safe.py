"""Strings from a server or a file, made harmless before they reach a terminal, a file or a forum."""

from __future__ import annotations

import re
import unicodedata
from html import escape as _escape_html
from typing import Final

HARD_SPACE: Final = "\u00a0"
"""A space at which no writer breaks a line. Clean text has none of its own."""
GLUE: Final = "\ue000"
"""Stands for a space while rich lays out, which breaks lines at every space and takes them off a line's end. Clean text
has none of its own."""
SHOWN_FOR_HARMFUL: Final = "\ufffd"
_SPACES: Final = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")
_HARMFUL: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that can move the cursor, turn the writing direction, or cannot be encoded at all."""
_MARKS_IN_A_ROW: Final = 4
"""More combining marks than any script needs on one letter would spill over the lines above and below."""
_ASCII: Final = str.maketrans(
    {
        "—": "-", "–": "-", "×": "x", "±": "+/-", "≥": ">=", "≤": "<=", "…": "...", "·": "|", "°": " deg ", "▸": ">",
        "━": "=", "─": "-", "╌": "-", "≈": "~", "�": "?", "√": "+", "⚠": "!",
    }
)  # fmt: skip


def clean(text: object, limit: int = 500, *, keep: str = "") -> str:
    """One line of printable text, at most `limit` characters: line breaks and tabs become one space, everything that
    is an instruction to a terminal or turns text around (control, bidirectional, zero-width, lone surrogates) shows
    as U+FFFD, so that it is seen but does nothing. `keep`: a character that stays what it is."""
    # a long hostile string is cut before the work is done, with room for what folds away
    told = str(text)[: limit * 4]
    plain = told.isascii() and told.isprintable() and not told.startswith(" ") and "  " not in told
    whole = told.rstrip() if plain else _cleaned(told, keep)  # nearly all texts are plain, and a page has thousands
    return whole if len(whole) <= limit else whole[: limit - 1].rstrip() + "…"


def _cleaned(text: str, keep: str = "") -> str:
    made: list[str] = []
    marks = 0
    for char in text:
        if char == keep:
            pass
        elif char in _SPACES or char.isspace():
            char = " "
        elif unicodedata.category(char) in _HARMFUL:
            char = SHOWN_FOR_HARMFUL
        if unicodedata.category(char) in ("Mn", "Me"):
            marks += 1
            if marks > _MARKS_IN_A_ROW or not made:
                continue
        else:
            marks = 0
        if char == " " and (not made or made[-1] == " "):
            continue
        made.append(char)
    return "".join(made).rstrip()


_ACTIVE: Final = re.compile(r"([\\`*_\[\]|~$#])")
_MENTION: Final = re.compile(r"@(?=\w)")
_LINK: Final = re.compile(r"(?i)(?:https?|ftp|mailto|xmpp):|www(?=\.)")
_ENTITIES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_WORD_JOINER: Final = "\u2060"


def markdown(text: object, limit: int = 500) -> str:
    """Text that Markdown shows as itself, on one line: no markup, HTML, table cell, formula, link or mention begins in
    it."""
    escaped = _ACTIVE.sub(r"\\\1", clean(text, limit)).translate(_ENTITIES)
    # nothing escapes an @ or a bare address on GitHub: an invisible joiner keeps it from naming a person, from linking
    inert = _MENTION.sub(f"@{_WORD_JOINER}", escaped)
    return _LINK.sub(lambda found: f"{found[0]}{_WORD_JOINER}", inert)


def html(text: object, limit: int = 4000) -> str:
    """Text that HTML shows as itself."""
    return _escape_html(clean(text, limit, keep=HARD_SPACE))


def for_encoding(text: str, encoding: str | None) -> str:
    """The text as a stream of that encoding can take it: as it is, else with our signs spelled in ASCII and `?` for
    what is left."""
    name = encoding or "utf-8"
    try:
        text.encode(name)
        return text
    except (UnicodeEncodeError, LookupError):
        plain = text.translate(_ASCII)
    try:
        return plain.encode(name, "replace").decode(name)
    except LookupError:
        return plain.encode("ascii", "replace").decode("ascii")
