"""When a closed-loop window may end so that it holds as many pauses as the long run does. Pure; times in seconds.

A stream that has written its answer pauses for one TTFT before it writes again. A window that ends before the first
restart holds no pause at all, and shows up to TTFT / cycle too much (10 % at 256k tokens); its own scatter cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

SPEED_OFF: Final = 1.05
"""An end must also do if the streams are this much slower than they seemed."""
GRID: Final = 400


def even_ends(
    first_tokens: Sequence[int],
    most_tokens: int,
    token_s: float,
    pause_s: float,
    age_s: float,
    wanted_s: Sequence[float],
    within: float,
) -> list[float]:
    """Ends near `wanted_s` (ascending; never beyond the last) whose share of pauses is that of the long run.

    `first_tokens`: lengths of the first round, one a stream; `most_tokens`: of each later round. `token_s`: between two
    tokens of a stream, `pause_s`: between two answers of it, `age_s`: since the streams' first tokens. `within`: the
    largest relative distance of the window's decoding time from the long run's. Where no end is even, `wanted_s`'s
    last stands alone: the longest window is the best there is.
    """
    longest = wanted_s[-1]
    grid = np.linspace(wanted_s[0], longest, GRID)
    even = np.ones(GRID, dtype=np.bool_)
    for factor in (1.0, SPEED_OFF):
        even &= np.abs(_excess(grid, first_tokens, most_tokens, token_s * factor, pause_s, age_s)) <= within
    ends = [float(grid[even][np.searchsorted(grid[even], at)]) for at in wanted_s if (grid[even] >= at).any()]
    if not ends:
        return [longest]
    return sorted(set(ends) | {float(grid[even][-1])})


def pauses_ended(
    first_tokens: Sequence[int], most_tokens: int, token_s: float, pause_s: float, age_s: float, at_s: float
) -> int:
    """How many pauses end in a window of `at_s`, even if the streams are a little slower than they seemed."""
    begin = _begin(at_s, first_tokens, most_tokens, token_s * SPEED_OFF, pause_s, age_s) + pause_s
    return int(((begin > 0) & (begin <= at_s)).sum())


def _begin(
    longest_s: float, firsts: Sequence[int], most: int, token_s: float, pause_s: float, age_s: float
) -> npt.NDArray[np.float64]:
    """When the pauses begin, in seconds since the window opened, up to `longest_s` at least."""
    cycle = most * token_s + pause_s
    rounds = np.arange(int((longest_s + age_s) / cycle) + 2) * cycle
    return np.asarray((np.asarray(firsts, dtype=np.float64)[:, None] * token_s + rounds).ravel() - age_s)


def _excess(
    at: npt.NDArray[np.float64], firsts: Sequence[int], most: int, token_s: float, pause_s: float, age_s: float
) -> npt.NDArray[np.float64]:
    """(n,) decoding time of windows of `at` seconds relative to the long run's, less 1."""
    cycle = most * token_s + pause_s
    begin = _begin(float(at[-1]), firsts, most, token_s, pause_s, age_s)
    paused = np.clip(np.minimum(at[:, None], begin + pause_s) - np.maximum(begin, 0.0), 0.0, None).sum(axis=1)
    return np.asarray((1.0 - paused / (len(firsts) * at)) / (1.0 - pause_s / cycle) - 1.0)
