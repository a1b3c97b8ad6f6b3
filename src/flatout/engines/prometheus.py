"""Prometheus text to numbers. Only the wanted lines are parsed, so that a poll costs well under 2 ms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from flatout.engines.base import TargetError

MOST_LINES: Final = 4_000
"""Wanted lines of one scrape: fourteen gauges of 64 data-parallel engines are 900."""
MOST_CHARS: Final = 4_000
"""Of one line; a longer one is skipped."""
REPLICA_LABELS: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
"""Labels whose series repeat one value (every tensor-parallel rank sees the same requests), so that they must not be
added up. Data-parallel ranks (`dp_rank`, vLLM's `engine`) and models are added."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The wanted samples of one scrape, by exact sample name."""

    series: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]] = field(default_factory=dict)

    def total(self, *names: str) -> float | None:
        """The sum over the series of the first of `names` that is there; NaN is no value; None if nothing is left, or
        if no number is so large."""
        return finite_sum(self._replicas_merged(names))

    def mean(self, *names: str) -> float | None:
        """The mean over the series of the first of `names` that is there, for shares such as KV use."""
        values = self._replicas_merged(names)
        total = finite_sum(values)
        return None if total is None else total / len(values)

    def labels(self, name: str) -> tuple[Mapping[str, str], ...]:
        """The label sets of an `…_info` metric, one a series."""
        return tuple(labels for labels, _ in self.series.get(name, ()))

    def _replicas_merged(self, names: Iterable[str]) -> list[float]:
        for name in names:
            merged: dict[frozenset[tuple[str, str]], float] = {}
            for labels, value in self.series.get(name, ()):
                if math.isfinite(value):
                    key = frozenset(item for item in labels.items() if item[0] not in REPLICA_LABELS)
                    merged[key] = max(merged.get(key, -math.inf), value)
            if merged:
                return list(merged.values())
        return []


def parse(text: str, names: frozenset[str]) -> Samples:
    """The samples named exactly so; lines that are no Prometheus text are skipped.

    Raises TargetError where so many lines have these names that each poll would cost seconds.
    """
    lines: list[str] = []
    for number, match in enumerate(_wanted(names).finditer(text), 1):
        if match.end() - match.start() <= MOST_CHARS:
            lines.append(match.group())
        if number > MOST_LINES:
            raise TargetError(
                "protocol",
                f"the server's /metrics has over {MOST_LINES:,} series of the gauges that flatout reads; so many "
                "cannot be read while something is measured",
            )
    try:
        return Samples(_collect("\n".join(lines) + "\n"))
    except Exception:
        # prometheus_client has no error of its own: bad input shows as ValueError, IndexError, KeyError, …
        return _one_by_one(lines)


def finite_sum(values: list[float]) -> float | None:
    """None for no numbers, or where no number is so large."""
    try:
        return math.fsum(values) if values else None
    except OverflowError:
        return None


def _one_by_one(lines: list[str]) -> Samples:
    series: dict[str, tuple[tuple[Mapping[str, str], float], ...]] = {}
    for line in lines:
        for candidate in (line, line.partition(" # {")[0]):  # the latter: an OpenMetrics exemplar cut off
            try:
                found = _collect(candidate + "\n")
            except Exception:
                continue
            for name, values in found.items():
                series[name] = series.get(name, ()) + values
            break
    return Samples(series)


def _collect(text: str) -> dict[str, tuple[tuple[Mapping[str, str], float], ...]]:
    series: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return {name: tuple(values) for name, values in series.items()}


@lru_cache(maxsize=16)
def _wanted(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"^(?:{'|'.join(map(re.escape, sorted(names)))})[{{ \t][^\n]*", re.MULTILINE)
