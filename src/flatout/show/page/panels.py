"""What opens for a cell: every figure, percentiles, small charts, the machine, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from flatout import metrics
from flatout.metrics import METRICS, SPEED, Metric
from flatout.record import Cell, Distribution
from flatout.show import about, charts, numbers
from flatout.show.charts import drawable
from flatout.show.page import values
from flatout.show.page.identity import fact_label, unit_of
from flatout.show.page.shown import Shown
from flatout.show.page.tables import known_status
from flatout.show.page.values import Value
from flatout.show.safe import clean

PHASES: Final[Mapping[str, tuple[str, str]]] = {
    "prefill": ("Prefill", "prefill"), "decode": ("Sustained decode", "decode"), "burst": ("Burst", "bursts"),
}  # fmt: skip
"""What a phase is called, and the section that its panels go back to."""
CURVES: Final = ("sm_clock_mhz", "power_w", "temperature_c", "gpu_use_percent", "cpu_use_percent", "throttled")
"""The machine's well-known curves."""
_HEADLINES: Final[Mapping[str, tuple[tuple[str, str, str | None], ...]]] = {
    "decode": (("per_request_tok_s", "tok/s each", None), ("ttft_ms", "TTFT", "cold_ttft_ms"),
               ("itl_ms", "between tokens", "itl_ms.p99")),
    "burst": (("duration_s", "for all", "completed"), ("ttft_ms", "TTFT", None)),
    "prefill": (("ttft_ms", "TTFT, cold", None),),
}  # fmt: skip
"""Beside a cell's speed, large: figures with what they are called there, and what stands small below each."""
_SPEEDS: Final = {"decode": "tok/s in total", "burst": "tok/s, first send to last end", "prefill": "prompt tok/s"}
_PARTS: Final = ("p50", "p90", "p99", "max", "mean")
Pair = tuple[str, Value]
Distributions = Mapping[str, tuple[str, Distribution]]


class Big(NamedTuple):
    """A large number of a panel."""

    number: str
    unit: str
    below: str


class Spread(NamedTuple):
    """A row of the table of percentiles; `parts`: (value, ± and its ends where it has an interval)."""

    label: str
    unit: str
    whose: str
    parts: list[tuple[Value, str, str]]
    samples: str


def name(cell: Cell) -> str:
    """`128K × 2`, `Prefill 8K`, `Burst 8K × 4`."""
    text = about.cell_name(cell)
    return text if cell.phase == "decode" else text[:1].upper() + text[1:]


def panels(shown: Shown, samples_dir: Path | None) -> list[dict[str, Any]]:
    """What the template places for each cell."""
    cells = shown.cells
    links = [(shown.anchor(cell), name(cell)) for cell in cells]
    made = []
    for number, cell in enumerate(cells):
        word, back = PHASES[cell.phase]
        at_once = f", {values.count(cell.concurrency)} request{'s' if cell.concurrency != 1 else ''} at once"
        found = _distributions(cell) if about.measured(cell) else {}
        made.append({
            "number": number + 1, "anchor": links[number][0], "name": links[number][1], "back": back,
            "phase": word + (at_once if cell.phase != "prefill" else ""),
            "previous": links[number - 1] if number else None,
            "next": links[number + 1] if number + 1 < len(links) else None,
            "status": about.status_word(cell.status), "kind": known_status(cell.status),
            "sentence": about.status_sentence(cell.status),
            "reason": clean(cell.reason, 1000) if cell.reason else None,
            "error": clean(cell.error, 2000) if cell.error else None,
            "flags": [(clean(f.name, 40).replace("_", " "), clean(f.detail, 600), about.flag_sentence(f.name))
                      for f in cell.flags[:100]],
            "big": _big(cell) if about.measured(cell) else [],
            "charts": charts.of_cell(cell, samples_dir) if about.measured(cell) else [],
            "spreads": list(_spreads(cell, found)), "spreads_missing": _missing(found),
            "samples": _samples(cell) if about.measured(cell) else [],
            "lists": [("Figures", _figures(cell)), ("Plan", _plan(cell)), *_machine(cell),
                      ("flatout's watch on itself", _self_check(cell))],
            "curves": _curves(cell),
            "attempts": [(about.moment(a.started), values.rate(a.total_tok_s), clean(a.reason, 300))
                         for a in cell.attempts[:20]],
        })  # fmt: skip
    return made


def _big(cell: Cell) -> list[Big]:
    """The few numbers that are looked for first, large."""
    if cell.decode is None and cell.burst is None and cell.prefill is None:
        return []
    speed = metrics.read(cell, SPEED[cell.phase])
    made = [Big(values.text(SPEED[cell.phase], speed).text, _SPEEDS[cell.phase], _ends(speed))]
    for figure, unit, below in _HEADLINES[cell.phase]:
        reading = metrics.read(cell, metrics.BY_NAME[figure])
        small = values.half(reading).text
        if below is not None:
            other = values.figure(cell, below)
            words = {"cold_ttft_ms": f"cold {other.text}", "itl_ms.p99": f"p99 {other.text}"}
            small = words.get(below, f"{other.text} completed") if other.known else ""
        made.append(Big(values.text(metrics.BY_NAME[figure], reading).text, unit, small))
    return [big._replace(below="" if big.below == numbers.NONE else big.below) for big in made]


def _ends(speed: metrics.Reading) -> str:
    """`450.1–458.0 (±0.4 %, within this run)`."""
    if speed.low is None or speed.high is None:
        return clean(speed.interval_reason, 120) if speed.interval_reason else "no interval"
    kind = getattr(speed.holder, "interval", None)
    covers = f", {clean(kind, 40)}" if kind else ""
    return f"{values.rate(speed.low)}–{values.rate(speed.high)} ({values.half(speed).text}{covers})"


# percentiles


def _of_phase(cell: Cell) -> Iterable[Metric]:
    return (metric for metric in METRICS if cell.phase in metric.at)


def _spread_of(metric: Metric) -> str | None:
    """`ttft_ms` of `ttft_ms_p99`: the distribution that a figure is a part of."""
    stem, _, part = metric.name.rpartition("_")
    return stem if part in metrics.PARTS else None


def _distributions(cell: Cell) -> Distributions:
    """The cell's distributions by name, each with its label."""
    found: dict[str, tuple[str, Distribution]] = {}
    for metric in _of_phase(cell):
        holder = metrics.read(cell, metric).holder if metric.name.endswith("_p50") else None
        if isinstance(holder, Distribution):
            found[metric.name.removesuffix("_p50")] = (metric.label.removesuffix(" p50"), holder)
    return found


def _spreads(cell: Cell, distributions: Distributions) -> Iterable[Spread]:
    for stem, (label, found) in distributions.items():
        rate = stem.endswith("_tok_s")
        parts = []
        for part in _PARTS:
            reading = metrics.read(cell, metrics.BY_NAME[f"{stem}_{part}"])
            number = getattr(found, part)
            text = values.rate(number) if rate else values.short(numbers.ms(number, fine=True, unit=False))
            low, high = (values.short(numbers.ms(end, fine=True, unit=False)) for end in (reading.low, reading.high))
            half = values.half(reading)
            parts.append((Value(text, reading.reason), half.text if half.known else "", f"{low} to {high}"))
        cut = f", {values.count(found.censored)} cut" if found.censored else ""
        words = label.removesuffix(" tok/s")
        yield Spread(
            words[:1].upper() + words[1:], "tok/s" if rate else "ms", clean(found.whose or "", 80), parts,
            values.count(found.n) + cut,
        )  # fmt: skip


def _missing(distributions: Distributions) -> str:
    """Why percentiles or their intervals are missing: `ITL, interval of p99: needs 368 independent gaps`."""
    told: dict[str, None] = {}
    for label, found in distributions.values():
        for key, reason in list(found.reasons.items())[:20]:
            part, _, interval = clean(key, 20).rpartition("_")
            what = f"interval of {part or 'p50'}" if interval == "interval" else clean(key, 20)
            told[f"{label}, {what}: {clean(reason, 200)}"] = None
    return "; ".join(told)


# lists of figures


def _figures(cell: Cell) -> list[Pair]:
    """Every figure but the percentiles; one that is missing stands there only if the record says why."""
    if not about.measured(cell):
        return []
    pairs = []
    for metric in _of_phase(cell):
        reading = metrics.read(cell, metric)
        if (
            _spread_of(metric)
            or metric is SPEED[cell.phase]
            or metric.name.startswith(("interval", "ttft_", "client_"))
        ):
            continue
        value = values.text(metric, reading)
        if value.known and metric.unit == "tokens" and metric.digits == "count":
            value = Value(f"{value.text} tokens")
        if reading.value is False or (reading.value == 0 and metric.shown == "export"):
            continue
        reason = reading.reason if reading.reason != "it was not measured" else None
        if value.known or reason or metric.shown == "first":
            pairs.append((metric.label[:1].upper() + metric.label[1:], Value(value.text, reason or "not recorded")))
    modes = cell.decode.two_modes_tok_s if cell.decode is not None else None
    if modes is not None:
        pairs.append(("Two speeds", Value(f"{values.rate(modes[0])} and {values.rate(modes[1])} tok/s")))
    return pairs


def _known(pairs: Iterable[tuple[str, str]]) -> list[Pair]:
    return [(label, Value(text)) for label, text in pairs if text and text != numbers.NONE]


def _plan(cell: Cell) -> list[Pair]:
    window = cell.window
    return [
        ("Context", Value(values.tokens(cell.context_tokens), "its length is not known")),
        *_known((
            ("Output, at most", values.tokens(cell.max_output)), ("Room needed", values.tokens(cell.need_tokens)),
            ("Started", about.moment(cell.started) or ""),
            ("Window opened", (about.moment(window.opened) or "") if window is not None else ""),
        )),
    ]  # fmt: skip


def _samples(cell: Cell) -> list[tuple[str, str, str, str, str]]:
    """The cold prompts of a prefill cell, each."""
    if cell.prefill is None:
        return []
    return [
        (
            values.count(s.prompt_tokens), values.count(s.cached_tokens), values.ms(s.ttft_ms),
            values.rate(s.prefill_tok_s),
            ("used" if s.used else "not used") + (f": {clean(s.note, 120)}" if s.note else ""),
        )
        for s in cell.prefill.samples[:100]
    ]  # fmt: skip


def _machine(cell: Cell) -> list[tuple[str, list[Pair]]]:
    """Means and extremes of the machine in the window, throttling, and energy."""
    t = cell.telemetry
    if t is None:
        return []
    pairs: list[Pair] = []
    for key, mean in list(t.means.items())[:40]:
        most = reading(key, t.maxima.get(key))
        text = reading(key, mean)
        whole = text if numbers.NONE in (text, most) else f"{text}, at most {most}"
        pairs.append((fact_label(key), Value(whole, clean(t.reasons.get(key, "not recorded"), 200))))
    throttle = ", ".join(f"{clean(n, 40)} {values.percent(s)}" for n, s in list(t.throttle.items())[:20] if s)
    if throttle or "throttle" not in t.reasons:
        pairs.append(("Throttled by", Value(throttle or "nothing")))
    others = [key for key in list(t.reasons)[:40] if key not in t.means]
    pairs += [(fact_label(key), Value(numbers.NONE, clean(t.reasons[key], 200))) for key in others]
    if t.energy_how and t.energy_j is not None:
        pairs.append(("Energy from", Value(clean(t.energy_how, 60))))
    return [("Machine in the window", pairs)]


def reading(key: str, value: float | None) -> str:
    if value is None or drawable(value) is None:
        return numbers.NONE
    if key.endswith("_bytes"):
        return values.short(numbers.size(value))
    return f"{values.short(f'{value:,.4g}')} {unit_of(key)}".strip()


def _curves(cell: Cell) -> list[charts.Small]:
    found = cell.telemetry.series if cell.telemetry is not None else {}
    drawn = (charts.over_window(fact_label(key), found[key], unit_of(key)) for key in CURVES if key in found)
    return [chart for chart in drawn if chart is not None]


def _self_check(cell: Cell) -> list[Pair]:
    s = cell.self_check
    if s is None:
        return []
    late = f"{values.count(s.late_reads)} of {values.count(s.reads)}"
    pauses = f"{values.count(s.gc_pauses)}, longest {values.ms(s.gc_longest_ms)}"
    return _known((
        ("Clock of arrivals", clean(s.clock, 60)), (f"Reads later than {values.ms(s.late_limit_ms)}", late),
        ("Reads that took several events", values.count(s.merged_reads)), ("Lag, p50", values.ms(s.lag_p50_ms)),
        ("Lag, p99", values.ms(s.lag_p99_ms)), ("Lag, worst", values.ms(s.lag_worst_ms)),
        ("Client's CPU", values.percent(s.cpu_share)), ("Pauses of the collector", pauses),
        ("Steps of the clock", values.count(s.clock_steps)),
    ))  # fmt: skip
