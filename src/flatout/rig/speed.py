"""How long things take: pure functions from the config's tables to nanoseconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby

from flatout.rig.config import RigConfig


def between(rows: Sequence[tuple[float, float]], at: float) -> float:
    """Linear between rows (x, y) sorted by x, flat outside."""
    i = bisect_left(rows, (at,))
    if i == 0:
        return rows[0][1]
    if i == len(rows):
        return rows[-1][1]
    (x0, y0), (x1, y1) = rows[i - 1], rows[i]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


class Grid:
    """Rows (context, concurrency, value): linear between concurrencies of one context, then between contexts."""

    def __init__(self, rows: Sequence[tuple[float, float, float]]) -> None:
        self._lines = [
            (x, [(n, value) for _, n, value in line]) for x, line in groupby(sorted(rows), key=lambda row: row[0])
        ]

    def at(self, context: float, concurrency: float) -> float:
        return between([(x, between(line, concurrency)) for x, line in self._lines], context)


class Speed:
    """The speeds of one config."""

    def __init__(self, config: RigConfig) -> None:
        self._config = config
        self._decode = Grid(config.decode_table) if config.decode_table else None
        self._warm = Grid(config.warm_ttft_table) if config.warm_ttft_table else None

    def _cold_s(self, tokens: float) -> float:
        """Time to prefill a cold prompt of so many tokens, without the fixed part."""
        if tokens <= 0:
            return 0.0
        if self._config.prefill_table:
            return tokens / between(self._config.prefill_table, tokens)
        return tokens / self._config.prefill_tok_s if self._config.prefill_tok_s else 0.0

    def prefill_ns(self, prompt_tokens: int, cached_tokens: int) -> int:
        """Work on the uncached part: what the whole prompt would take less what its cached head would have taken."""
        work = self._cold_s(prompt_tokens) - self._cold_s(cached_tokens)
        return int(max(0.0, work) * self._config.time_scale * 1e9)

    def fixed_ns(self, prompt_tokens: int, cached_tokens: int, running: int) -> int:
        """The part of the time to first token that is no work on tokens."""
        ms = self._config.ttft_ms
        if self._warm is not None and cached_tokens * 2 > prompt_tokens:
            ms = self._warm.at(prompt_tokens, running)
        return int(ms * self._config.time_scale * 1e6)

    def stream_tok_s(self, running: int, decoding: int, context: float) -> float:
        """Tokens a second of one stream, with so many requests running (prefill included) and decoding."""
        if self._decode is not None:
            rate = self._decode.at(context, running)
        elif self._config.capacity_tok_s is not None:
            rate = self._config.capacity_tok_s / max(1, decoding)
        else:
            rate = self._config.decode_tok_s
        return rate / self._config.time_scale
