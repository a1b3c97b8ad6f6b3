"""Small pictures in tables: a value with its interval on a common axis. Shapes and numbers only."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from flatout.site.boards import Ranked

WIDTH, HEIGHT = 176.0, 16.0
_MIDDLE = HEIGHT / 2
_ROOM = 1.15


def axis(rows: Sequence[Ranked], *, open_ended: bool = False) -> float:
    """The end of the axis, which begins at 0: the largest value or end of an interval, and room beyond it where one has
    no upper end."""
    end = max((max(row.value, row.high or 0.0) for row in rows), default=0.0)
    return end * _ROOM if open_ended else end


def whisker(row: Ranked, end: float, *, open_ended: bool = False) -> Markup:
    """A bar to the value and a line over its 95 % interval; no line where it is not known, a dotted one where it has no
    upper end."""
    if not end > 0 or not 0 <= row.value <= end:
        return Markup("")
    at = _x(row.value, end)
    parts = [f'<rect class="band" x="0" y="{_MIDDLE - 3:.1f}" width="{at}" height="6"/>']
    if row.low is not None and row.high is not None:
        left, right = _x(min(row.low, row.value), end), _x(min(max(row.high, row.value), end), end)
        parts.append(f'<path class="line" d="M{left},{_MIDDLE}H{right}M{left},4V12M{right},4V12"/>')
    elif open_ended:
        parts.append(f'<path class="line open" d="M{at},{_MIDDLE}H{WIDTH}"/>')
    parts.append(f'<circle class="dot" cx="{at}" cy="{_MIDDLE}" r="2.6"/>')
    box = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none"'
    return Markup(f'<svg class="whisk" {box} aria-hidden="true">{"".join(parts)}</svg>')


def _x(value: float, end: float) -> str:
    return f"{max(0.0, value) / end * WIDTH:.1f}"
