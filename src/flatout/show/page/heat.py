"""The shade of a number among its like: ten steps on a logarithmic scale, more of it is better."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from flatout.show.page.values import drawable

LIGHT: Final = (
    "#fbf7e9", "#f6edd9", "#f3e4c7", "#f1d9b4", "#f0cfa2", "#efc390", "#efb77e", "#efab6c", "#ef9d5b", "#ef8f4b",
)  # fmt: skip
"""The shades on light paper, worst to best; the page's style sheet has them too, and their dark sisters."""
STEPS: Final = len(LIGHT)


class Heat:
    """Shades for one figure. `more`: whether a larger value is the better one."""

    def __init__(self, found: Iterable[float | None], *, more: bool) -> None:
        known = [value for value in map(drawable, found) if value is not None and value > 0]
        self._low = min(known, default=1.0)
        self._high = max(known, default=1.0)
        self._more = more

    def step(self, value: float | None) -> int | None:
        """0 (worst) to STEPS - 1 (best); None for what cannot be placed."""
        number = drawable(value)
        if number is None or number <= 0:
            return None
        if self._high <= self._low:
            return STEPS // 2
        share = math.log(number / self._low) / math.log(self._high / self._low)
        place = min(1.0, max(0.0, share if self._more else 1 - share))
        return min(STEPS - 1, int(place * STEPS))
