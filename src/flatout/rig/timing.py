"""How long things take, from the config's tables, and the engine's own time, which stands still in a stall."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import groupby

from flatout.rig.config import RigConfig
from flatout.rig.truth import Log


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


class EngineClock:
    """Engine ns = real ns less all stalls so far: what is due in a stall comes as much later. Stalls may be set for
    later; they take effect as their time comes."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.offset_ns = 0  # all stalls that have begun
        self._frozen_ns = 0  # engine time while frozen
        self._frozen_until_ns = 0  # real
        self._planned: list[tuple[int, int]] = []

    def plan(self, start_ns: int, for_ns: int) -> None:
        """Silence from real `start_ns` on."""
        heappush(self._planned, (start_ns, for_ns))

    def clear(self, log: Log) -> None:
        """Forget stalls that have not begun; write into a new log."""
        self._planned.clear()
        self._log = log

    def _apply(self, now_ns: int) -> None:
        while self._planned and self._planned[0][0] <= now_ns:
            start_ns, for_ns = heappop(self._planned)
            start_ns = max(start_ns, self._frozen_until_ns)  # a stall inside a stall follows it
            self._frozen_ns = start_ns - self.offset_ns
            self._frozen_until_ns = start_ns + for_ns
            self.offset_ns += for_ns
            self._log.stall_ns.extend((start_ns, start_ns + for_ns))

    def engine_ns(self, real_ns: int) -> int:
        self._apply(real_ns)
        return self._frozen_ns if real_ns < self._frozen_until_ns else real_ns - self.offset_ns

    def real_ns(self, engine_ns: int, now_ns: int) -> int:
        """When an engine time comes, by the stalls that have begun by `now_ns`."""
        self._apply(now_ns)
        return engine_ns + self.offset_ns

    def wake_ns(self, engine_ns: int) -> int:
        """When to look again: that time, or the start of a stall if one comes before."""
        due_ns = engine_ns + self.offset_ns
        return min(due_ns, self._planned[0][0]) if self._planned else due_ns
