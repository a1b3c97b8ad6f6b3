"""The one table of figures: what each is called, what it means, which cells have it, how it is read, written, judged.

Exports, the page, tables, compare, lint, the site and docs/definitions.md walk this table; nobody else lists figures. A
new figure is one field in `record` and one line here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from flatout.flags import MEASURED, SENTENCES, Status
from flatout.record import Cell, Distribution, Rate

Phase = Literal["prefill", "decode", "burst"]
Value = str | int | float | bool | None
Digits = Literal["rate", "ms", "fine_ms", "count", "mean", "seconds", "share", "joule", "ratio", "plain"]
"""How a value is written (`show.numbers.figure`). `fine_ms`: times between tokens, where 2 % must show; `mean`: one
decimal; `share`: percent of one; `ratio`: two decimals; `plain`: a word or a whole number as it is."""
Shown = Literal["first", "always", "if known", "export", "by name"]
"""Where a figure stands: `first`: in every table, leftmost, as published pages have it; `always`: in the page's table
behind those; `if known`: there where any cell has it; `export`: only in files; `by name`: only where asked for."""
Kind = Literal["float", "int", "bool", "text"]
Path = str | Callable[[Cell], Value]
"""Where a value lies: attributes from the cell on (`decode.ttft_ms.p50`), or how it is computed."""

PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode", "burst")
PARTS: Final = tuple(name for name in Distribution.model_fields if re.fullmatch(r"p\d+|max|mean", name))
"""What a distribution tells: its percentiles, the largest value and the mean."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. `name`: with its unit; figures of different phases may share a `column`. `key`: as compare and
    `--fail-if` name it: the field in the record, with the percentile where it is not the median (`itl_ms.p99`).
    `better`: which way is faster, None where neither is. `judged`: compare judges it without being asked. `at`: where
    it is read, by phase; cells of another phase cannot have it."""

    name: str
    key: str
    label: str
    unit: str
    definition: str
    at: Mapping[Phase, Path]
    digits: Digits
    shown: Shown
    kind: Kind = "float"
    better: Literal["more", "less"] | None = None
    judged: bool = False
    column: str = ""

    def __str__(self) -> str:
        return self.key

    @property
    def interval(self) -> bool:
        """Whether its column is followed by the ends of its 95 % interval."""
        return all(re.search(r"\.(value|p\d+)$", str(path)) for path in self.at.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure of one cell. `reason`: why there is no value, None where the record does not tell;
    `interval_reason`: why a value has no interval. `holder`: the record's own Rate or Distribution, where it is one."""

    value: Value = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    interval_reason: str | None = None
    holder: Rate | Distribution | None = None

    @property
    def number(self) -> float | None:
        """The value where it is a number."""
        return self.value if isinstance(self.value, int | float) and not isinstance(self.value, bool) else None

    @property
    def half(self) -> float | None:
        """The larger half of the interval, relative to the value: what stands behind every ±."""
        value, low, high = self.number, self.low, self.high
        if value is None or low is None or high is None or value <= 0:
            return None
        return max(high - value, value - low, 0.0) / value


def read(cell: Cell, metric: Metric) -> Reading:
    """The figure of a cell. A cell that shows no numbers has none, and says why."""
    path = metric.at.get(cell.phase)
    if cell.status not in MEASURED:
        known = cell.status in set(Status)
        return Reading(reason=cell.reason or (SENTENCES[Status(cell.status)] if known else cell.status))
    if path is None:
        return Reading(reason=f"a {cell.phase} cell has none")
    if callable(path):
        return Reading(path(cell))
    owner: Any = None
    found: Any = cell
    part = path
    for part in path.split("."):
        owner, found = found, getattr(found, part)
        if found is None:
            break
    reason = None if found is not None else _reason(owner, part)
    if isinstance(owner, Rate):
        return Reading(found, owner.low, owner.high, reason, owner.reason, owner)
    if isinstance(owner, Distribution):
        why = owner.reasons.get("interval" if part == "p50" else f"{part}_interval")
        low, high = getattr(owner, f"{part}_low", None), getattr(owner, f"{part}_high", None)
        return Reading(found, low, high, reason, why, owner)
    return Reading(found, reason=reason)


def _reason(owner: Any, part: str) -> str | None:
    held = vars(owner)  # a model that is asked for a field which it has not takes its time
    reason: str | None = held.get("reasons", {}).get(part) or held.get("reason")
    return reason


def _one(
    name: str, label: str, unit: str, definition: str, *, phases: str = "decode", digits: Digits, shown: Shown,
    kind: Kind = "float", better: Literal["more", "less"] | None = None, judged: bool = False, column: str = "",
    at: Mapping[Phase, Path] | None = None, key: str = "",
) -> Metric:  # fmt: skip
    """A single figure, by default the field of its name in the phase's figures."""
    paths: Mapping[Phase, Path] = at or {phase: f"{phase}.{key or name}" for phase in PHASES if phase in phases}
    return Metric(
        name, key or name, label, unit, definition, paths, digits, shown, kind, better, judged, column or name
    )  # fmt: skip


def _rate(name: str, label: str, phase: Phase, definition: str) -> Metric:
    """A phase's own speed: all three stand in one column."""
    return _one(
        name, label, "tok/s", definition, at={phase: f"{phase}.{name}.value"}, digits="rate", shown="first",
        better="more", judged=True, column="total_tok_s",
    )  # fmt: skip


def _spread(
    name: str, label: str, definition: str, *, phases: str, digits: Digits, shown: Mapping[str, Shown],
    judged: bool = False,
) -> Iterator[Metric]:  # fmt: skip
    """A distribution: one figure for each of its parts; those not in `shown` are found by name only.

    A new percentile is a field in `record.Distribution`, and its name in `shown` where files shall have it."""
    unit = "tok/s" if name.endswith("_tok_s") else "ms"
    for part in PARTS:
        yield Metric(
            f"{name}_{part}", name if part == "p50" else f"{name}.{part}",
            label if part == "p50" and unit == "tok/s" else f"{label} {part}", unit, definition,
            {phase: f"{phase}.{name}.{part}" for phase in PHASES if phase in phases}, digits,
            shown.get(part, "by name"), "float", "more" if unit == "tok/s" else "less", judged and part == "p50",
            f"{name}_{part}",
        )  # fmt: skip


def _prompts_used(cell: Cell) -> int | None:
    samples = cell.prefill.samples if cell.prefill is not None else []
    return sum(sample.used for sample in samples) if samples else None


def _gap_open(cell: Cell) -> bool | None:
    decode = cell.decode
    return None if decode is None or decode.longest_gap_ms is None else decode.longest_gap_open


def _energy_per_token(cell: Cell) -> float | None:
    joules = cell.telemetry.energy_j if cell.telemetry is not None else None
    tokens = cell.decode.output_tokens if cell.decode is not None else None
    return joules / tokens if joules is not None and tokens is not None and tokens > 0 else None


_EVERY: Final = "prefill decode burst"
_OF_PHASE: Final[Mapping[Phase, str]] = {
    "prefill": "prefill.prefill_tok_s", "decode": "decode.total_tok_s", "burst": "burst.end_to_end_tok_s",
}  # fmt: skip


def _speeds(part: str) -> dict[Phase, Path]:
    return {phase: f"{path}.{part}" for phase, path in _OF_PHASE.items()}


def _cells(path: str, phases: str = _EVERY) -> dict[Phase, Path]:
    """A value that stands in the cell beside its figures."""
    return {phase: path for phase in PHASES if phase in phases}


METRICS: Final[tuple[Metric, ...]] = (
    _rate("total_tok_s", "total tok/s", "decode", "Tokens that arrived in the window / the window's own length."),
    _rate("prefill_tok_s", "prefill tok/s", "prefill",
          "(prompt tokens − cached tokens) / TTFT of a cold prompt, alone on the server; median of at least three "
          "different prompts."),
    _rate("end_to_end_tok_s", "end-to-end tok/s", "burst",
          "Fixed-count mode only: tokens / (last end − first send)."),
    _one("interval", "interval covers", "", "What the 95 % interval of the speed covers: the scatter within this run, "
         "or between repeats.", at=_speeds("interval"), digits="plain", shown="export", kind="text"),
    _one("interval_n", "interval from", "", "How many batches, prompts or repeats that interval is made of.",
         at=_speeds("n"), digits="plain", shown="export", kind="int"),
    *_spread("per_request_tok_s", "per-request tok/s", "1 / TPOT, median over the requests.", phases="decode burst",
             digits="rate", shown={"p50": "first"}, judged=True),
    *_spread("ttft_ms", "TTFT", "`first_token − send`, on a connection that is already open.", phases=_EVERY,
             digits="ms", shown={"p50": "first", "p90": "export", "p99": "always", "max": "export"}, judged=True),
    _one("ttft_n", "TTFT requests", "requests", "Requests whose first token counts for TTFT.",
         at={phase: f"{phase}.ttft_ms.n" for phase in PHASES}, digits="count", shown="export", kind="int"),
    _one("ttft_whose", "TTFT of", "", "Whose TTFT it is: that of requests sent after the launch, or the launch's own.",
         at={phase: f"{phase}.ttft_ms.whose" for phase in PHASES}, digits="plain", shown="export", kind="text"),
    _one("cold_ttft_ms", "TTFT cold", "ms", "TTFT of the same contexts before they were in the prefix cache.",
         at={"prefill": "prefill.ttft_ms.p50", "decode": "decode.cold_ttft_ms"}, digits="ms", shown="if known",
         better="less"),
    *_spread("ttft_answer_ms", "TTFT of the answer", "`first_answer − send`: the first token that is not reasoning; "
             "only where the model reasons.", phases="decode", digits="ms", shown={"p50": "export"}),
    *_spread("tpot_ms", "TPOT", "(`last_token − first_token`) / (n − tokens of the first arrival), of the part of a "
             "request inside the window, where that has 16 tokens or more.", phases="decode burst", digits="fine_ms",
             shown={"p50": "if known", "p90": "export", "p99": "export"}),
    *_spread("itl_ms", "ITL", "Token-weighted: an arrival with k tokens after a gap g counts k times as g/k.",
             phases="decode burst", digits="fine_ms", shown={"p50": "first", "p90": "if known", "p99": "always"},
             judged=True),
    _one("longest_gap_ms", "longest gap", "ms", "The longest silence between two arrivals of one request (a stall).",
         phases="decode burst", digits="ms", shown="if known", better="less"),
    _one("longest_gap_open", "longest gap cut", "", "The window's end cut the longest gap, so that it is at least this "
         "long.", at={"decode": _gap_open}, digits="plain", shown="export", kind="bool"),
    _one("connect_ms", "connect", "ms", "Time to connect (and TLS), which is no part of TTFT.", digits="ms",
         shown="export", better="less"),
    _one("active_client_mean", "average active, client", "requests",
         "Time-weighted over the window: the client's own requests in flight.", key="active_own_mean", digits="mean",
         shown="first"),
    _one("active_server_mean", "average active, server", "requests",
         "Time-weighted over the window: the server's running count, where it tells.", digits="mean", shown="first"),
    _one("waiting_server_mean", "average waiting", "requests",
         "Time-weighted over the window: the server's waiting count, where it tells.", digits="mean", shown="if known"),
    _one("kv_use_max", "KV in use", "", "The largest share of the KV cache that the server had in use.",
         digits="share", shown="if known"),
    _one("completed", "completed requests", "requests",
         "Requests that ended, with a finish reason, inside the window; prompts that count, for prefill.",
         at={"prefill": _prompts_used, "decode": "decode.completed", "burst": "burst.completed"}, digits="count",
         shown="first", kind="int"),
    _one("failed_requests", "failed requests", "requests", "Requests that broke off or were refused.",
         phases="decode burst", digits="count", shown="if known", kind="int"),
    _one("rate_limited", "rate-limited requests", "requests", "Requests that the server refused with 429.",
         phases=_EVERY, digits="count", shown="export", kind="int"),
    _one("output_tokens", "output tokens", "tokens", "Tokens that arrived in the window.", phases="decode burst",
         digits="count", shown="first"),
    _one("measured_s", "measured for", "s", "The window's own length; of a burst, from its first send to its last end.",
         at=_cells("window.length_s", "prefill decode"), digits="seconds", shown="first"),
    _one("duration_s", "duration", "s", "Of a burst: from its first send to its last end.", phases="burst",
         digits="seconds", shown="first", better="less", column="measured_s"),
    _one("mean_depth_tokens", "mean depth", "tokens",
         "Context and output so far of the decoding requests, over the window.", digits="count", shown="if known"),
    _one("prompt_tokens", "prompt tokens", "tokens", "The server's own count of a cold prompt.", phases="prefill",
         digits="count", shown="export", kind="int"),
    _one("prompt_tokens_min", "prompt tokens, least", "tokens", "The server's own count of the shortest prompt.",
         digits="count", shown="export", kind="int"),
    _one("prompt_tokens_max", "prompt tokens, most", "tokens", "The server's own count of the longest prompt.",
         digits="count", shown="export", kind="int"),
    _one("cached_tokens_mean", "cached tokens", "tokens", "Tokens of a prompt that the server had in its cache, mean.",
         digits="count", shown="export"),
    _one("asked_tokens_mean", "asked tokens", "tokens", "Output tokens that a request asked for, mean.",
         digits="count", shown="export"),
    _one("output_tokens_mean", "answer tokens", "tokens", "Output tokens of a completed request, mean.",
         digits="count", shown="export"),
    _one("acceptance_length", "acceptance length", "tokens",
         "Tokens per sequence and verification step: 1 + Δaccepted / Δdrafts from the counters' difference over the "
         "window.", key="acceptance.length", digits="ratio", shown="if known"),
    _one("acceptance_how", "acceptance from", "", "Where the acceptance length comes from: counters or a gauge.",
         key="acceptance.how", digits="plain", shown="export", kind="text"),
    _one("draft_share", "accepted drafts", "", "The share of drafted tokens that were accepted.",
         key="acceptance.draft_share", digits="share", shown="export"),
    _one("preemptions", "preemptions", "", "How often the server took a running request off the batch.",
         digits="count", shown="export"),
    _one("streams_started", "streams started", "streams", "Streams that had a token before the window opened.",
         digits="count", shown="export", kind="int"),
    _one("looping_share", "looping answers", "", "The share of answers that say the same again and again.",
         digits="share", shown="export"),
    _one("drift_change", "drift", "",
         "The fitted change of the speed over the window, relative to its mean; only where it is shown.",
         digits="share", shown="export"),
    _one("energy_per_token_j", "energy per token", "J",
         "Energy of the accelerators in the window / the output tokens in it.", at={"decode": _energy_per_token},
         digits="joule", shown="if known"),
    _one("token_source", "tokens counted by", "", "Where the token counts come from.", at=_cells("tokens.source"),
         digits="plain", shown="if known", kind="text"),
    _one("tokens_estimated_share", "tokens estimated", "", "The share of tokens that was not counted by the server.",
         at=_cells("tokens.estimated_share"), digits="share", shown="export"),
    _one("reasoning_unstreamed_tokens", "reasoning not streamed", "tokens",
         "Reasoning that is billed but not streamed; it stays outside the rates.",
         at=_cells("tokens.reasoning_unstreamed"), digits="count", shown="export", kind="int"),
    _one("steady_after_s", "steady after", "s", "From the launch to the opening of the window.",
         at=_cells("window.steady_after_s"), digits="seconds", shown="export"),
    _one("window_ended_by", "window ended by", "", "What ended the window: its time, or the precision reached.",
         at=_cells("window.ended_by"), digits="plain", shown="export", kind="text"),
    _one("client_clock", "client's clock", "", "Whose stamps the arrivals have: the kernel's, or the process's own.",
         at=_cells("self_check.clock"), digits="plain", shown="export", kind="text"),
    _one("client_lag_ms_p99", "client's lag p99", "ms", "How late flatout itself read what had arrived.",
         at=_cells("self_check.lag_p99_ms"), digits="fine_ms", shown="export"),
    _one("client_cpu_share", "client's CPU", "", "The share of a core that flatout's reading process used.",
         at=_cells("self_check.cpu_share"), digits="share", shown="export"),
    _one("energy_j", "energy", "J", "Energy of the accelerators in the window.", at=_cells("telemetry.energy_j"),
         digits="joule", shown="export"),
)  # fmt: skip

SPEED: Final[Mapping[Phase, Metric]] = {
    "prefill": METRICS[1], "decode": METRICS[0], "burst": METRICS[2],
}  # fmt: skip
"""The figure that is a cell's speed."""
BY_NAME: Final[Mapping[str, Metric]] = {
    **{metric.name: metric for metric in METRICS}, **{metric.key: metric for metric in METRICS}
}  # fmt: skip
"""By name and by key: `itl_ms_p99` and `itl_ms.p99` are the same."""


def columns() -> dict[str, dict[Phase, Metric]]:
    """What files and tables have as columns, in order: for each its figure by phase."""
    made: dict[str, dict[Phase, Metric]] = {}
    for metric in METRICS:
        if metric.shown != "by name":
            made.setdefault(metric.column, {}).update(dict.fromkeys(metric.at, metric))
    return made


def judged(phase: Phase) -> tuple[Metric, ...]:
    """What compare judges in cells of a phase, its speed first."""
    return tuple(metric for metric in METRICS if metric.judged and phase in metric.at)
