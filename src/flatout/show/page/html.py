"""HTML by construction: a plain string is always escaped, and only what these functions made counts as markup.

Whatever a record holds reaches the page through `tag`, so there is no place where a string could be forgotten.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable
from typing import Final, TypeAlias

from flatout.show.safe import SHOWN_FOR_HARMFUL

_HARMFUL: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LONGEST: Final = 20_000
_VOID: Final = frozenset({"br", "meta", "link", "input"})
_SHAPES: Final = frozenset({"path", "line", "rect", "circle"})
"""Elements of SVG that hold nothing: closed within their own tag, as HTML wants it there."""


class Html(str):
    """Markup that is safe to stand in the page. Made by `tag`, `join` and `raw` only."""

    __slots__ = ()


Child: TypeAlias = "str | Html | Iterable[Child] | None"
Attribute: TypeAlias = "str | int | float | bool | None"


def raw(markup: str) -> Html:
    """Our own constant markup. Never call it with anything from a record."""
    return Html(markup)


def escape(text: str) -> Html:
    """Text as itself: no markup, and nothing that turns or hides other text (bidirectional, zero-width, controls)."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "…"
    if not text.isprintable():
        text = "".join(_shown(char) for char in text)
    return Html(html.escape(text, quote=True))


def _shown(char: str) -> str:
    return SHOWN_FOR_HARMFUL if char not in "\n\t" and unicodedata.category(char) in _HARMFUL else char


def join(*children: Child) -> Html:
    """Children in a row; None is nothing."""
    return Html("".join(_parts(children)))


def _parts(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield child
        elif isinstance(child, str):
            yield escape(child)
        else:
            yield from _parts(child)


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. Attribute names lose a trailing `_`, and `_` becomes `-`: class_, data_v, aria_label. None and False
    leave an attribute out, True gives it without a value."""
    made = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        made.append(f" {word}" if value is True else f' {word}="{escape(str(value))}"')
    if name in _VOID or name in _SHAPES:
        made.append("/>" if name in _SHAPES else ">")
        return Html("".join(made))
    made.append(">")
    made.extend(_parts(children))
    made.append(f"</{name}>")
    return Html("".join(made))


def hidden(text: str) -> Html:
    """Text for those who listen instead of look."""
    return tag("span", text, class_="vh")
