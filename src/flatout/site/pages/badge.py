"""A two-part badge as SVG, drawn here: it loads nothing."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from flatout.show import numbers
from flatout.show.safe import clean
from flatout.site.boards import Board

HEIGHT: Final = 20
FONT: Final = "Verdana,DejaVu Sans,Geneva,sans-serif"
_WIDE: Final = frozenset("mwMWK@%≥×—")
_THIN: Final = frozenset("iljtfr.,:;|!1 ()/·")
NOTHING: Final = "no valid figure"


def words(board: Board | None, value: float | None) -> str:
    """`173 tok/s · 8K × 1`, `≥ 30 tok/s each: 12 at 8K`."""
    if board is None or value is None:
        return NOTHING if board is None else f"{NOTHING} · {where(board)}"
    if board.kind == "users":
        return f"{numbers.count(value)} at once ≥ {board.n} tok/s · {numbers.context(board.context_tokens)}"
    return f"{numbers.rate(value)} tok/s · {where(board)}"


def where(board: Board) -> str:
    context = numbers.context(board.context_tokens)
    return f"{context} prefill" if board.kind == "prefill" else f"{context} × {board.n}"


def badge(left: str, right: str) -> str:
    """The SVG. Both texts are made harmless and escaped."""
    left, right = clean(left, 40), clean(right, 80)
    a, b = width(left), width(right)
    total = a + b
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{high}" role="img" '
            'aria-label="{left}: {right}">'
            "<title>{left}: {right}</title>"
            '<clipPath id="r"><rect width="{total}" height="{high}" rx="3"/></clipPath>'
            '<g clip-path="url(#r)"><rect width="{a}" height="{high}" fill="#191714"/>'
            '<rect x="{a}" width="{b}" height="{high}" fill="#f0cfa2"/></g>'
            '<g font-family="{font}" font-size="11" text-anchor="middle">'
            '<text x="{x}" y="14" fill="#fdfcfa" textLength="{la}">{left}</text>'
            '<text x="{y}" y="14" fill="#191714" textLength="{lb}">{right}</text></g></svg>'
        ).format(
            total=total, high=HEIGHT, left=left, right=right, a=a, b=b, font=FONT, x=f"{a / 2:.1f}",
            y=f"{a + b / 2:.1f}", la=a - 12, lb=b - 12,
        )
    )  # fmt: skip


def width(text: str) -> int:
    """How wide a part is, with its margins: an estimate, which `textLength` makes exact."""
    return round(sum(9.6 if c in _WIDE else 4.2 if c in _THIN else 6.9 for c in text)) + 12
