"""Records for the page: one with everything that a cell can hold, and hostile ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flatout.compare import Comparison, compare
from flatout.flags import Status
from flatout.record import (
    Acceptance,
    Attempt,
    Cell,
    Distribution,
    Histogram,
    Record,
    SelfCheck,
    Series,
    Telemetry,
    Tokens,
    Warmup,
)
from tests import records

PLANTED = (
    "\"'><script>window.pwned=1</script><img src=x onerror=window.pwned=1><svg onload=window.pwned=1>"
    "</script></style></title><a href=javascript:window.pwned=1>x</a>\u202egnp.exe\u2066\u200b\x00\x1b[31m"
    "{{7*7}}${7*7}`"
)
"""Ways to run or to disguise something, in one string."""


def _histogram(low: float, high: float, bars: int = 40) -> Histogram:
    step = (high / low) ** (1 / bars)
    return Histogram(
        edges=[low * step**i for i in range(bars + 1)],
        counts=[1000 * math.exp(-(((i - bars / 3) / 6) ** 2)) for i in range(bars)],
    )


def _series(mean: float, points: int = 240, length_s: float = 30.0) -> Series:
    times = [length_s * (i + 0.5) / points for i in range(points)]
    return Series(t_s=times, values=[mean * (1 + 0.1 * math.sin(7.3 * i)) for i in range(points)])


def _full(found: Distribution, low: float, high: float) -> Distribution:
    return found.model_copy(
        update={
            "n": 4000, "p90": high * 0.8, "p99": high * 0.95, "max": high, "p50_low": found.p50, "p50_high": found.p50,
            "p90_low": high * 0.78, "p90_high": high * 0.82,
            "reasons": {**found.reasons, "p99_interval": "needs 368 independent gaps: it has about 250"},
            "histogram": _histogram(low, high),
        }
    )  # fmt: skip


def furnished(cell: Cell) -> Cell:
    """The cell with every part that a run can record."""
    d = cell.decode
    if d is None:
        return cell
    each = d.per_request_tok_s.p50 or 1.0
    decode = d.model_copy(
        update={
            "itl_ms": _full(d.itl_ms, 1.0, 40.0), "ttft_ms": _full(d.ttft_ms, 50.0, 900.0),
            "tpot_ms": _full(d.tpot_ms, 1.0, 40.0), "cold_ttft_ms": 512.0, "longest_gap_ms": 61.0, "connect_ms": 0.3,
            "waiting_server_mean": 0.4, "kv_use_max": 0.61, "mean_depth_tokens": 9000.5, "prompt_tokens_min": 8191,
            "prompt_tokens_max": 8193, "cached_tokens_mean": 8176.0, "asked_tokens_mean": 4096.0,
            "output_tokens_mean": 4012.5, "acceptance": Acceptance(length=3.21, how="counters", draft_share=0.44),
            "preemptions": 0.0, "looping_share": 0.01, "drift_change": -0.012, "two_modes_tok_s": (each * 0.8, each),
            "tok_s_series": _series(d.total_tok_s.value or 1.0), "running_series": _series(float(cell.concurrency), 60),
            "waiting_series": _series(0.5, 60),
        }
    )  # fmt: skip
    telemetry = Telemetry(
        means={"sm_clock_mhz": 1755.0, "power_w": 512.3, "temperature_c": 61.0, "gpu_memory_used_bytes": 1.2e11},
        maxima={"sm_clock_mhz": 1980.0, "power_w": 598.1, "temperature_c": 66.0},
        throttle={"power cap": 0.12}, energy_j=15_369.0, energy_how="counter",
        reasons={"cpu_use_percent": "one sample only"},
        series={"sm_clock_mhz": _series(1755.0, 60), "power_w": _series(512.0, 60)},
    )  # fmt: skip
    check = SelfCheck(
        clock="kernel", reads=120_000, late_reads=3, late_limit_ms=2.0, merged_reads=4, unstamped_reads=0,
        lag_p50_ms=0.1, lag_p99_ms=0.6, lag_worst_ms=2.9, cpu_share=0.31, gc_pauses=0, gc_longest_ms=0.0, clock_steps=0,
    )  # fmt: skip
    return cell.model_copy(
        update={
            "decode": decode, "telemetry": telemetry, "self_check": check,
            "tokens": Tokens(source="running counts", in_window=d.output_tokens, own_total=5000.0, server_total=5001.0),
            "attempts": [Attempt(started="2026-11-30T02:40:00+00:00", reason="8.6 running for 8", total_tok_s=2000.0)],
            "started": "2026-11-30T02:42:00.000+00:00", "finished": "2026-11-30T02:42:41.000+00:00",
            "order": cell.concurrency,
        }
    )  # fmt: skip


def full_seed() -> Record:
    """The seed's whole matrix with every part in every measured cell: what a long run's page has to carry."""
    made = records.seed_page()
    warmup = Warmup(what="32 at once", speeds=[4000.0, 4010.0], unit="events/s", repeats=True)
    return made.model_copy(update={"cells": [furnished(cell) for cell in made.cells], "warmups": [warmup]})


def planted(record: Record, *, statuses: bool) -> Record:
    """The record with PLANTED in every string that has no fixed set of values. `statuses`: in those of cells, too."""
    fixed = {"format", "phase", "source", "describes", "state"} | (set() if statuses else {"status"})
    content = _plant(record.model_dump(), "", fixed)
    for key in ("name", "version", "launch_command", "draft_model", "speculative_method"):
        content["engine"][key] = {"value": PLANTED, "source": "server", "reason": None}
    content["client"]["command"] = ["flatout", "run", PLANTED]
    content["protocol"] |= {
        "fields": {PLANTED: PLANTED},
        "sampling": {PLANTED: PLANTED},
        "dropped": [[PLANTED, PLANTED]],
    }
    content["hardware"]["facts"] |= {PLANTED: {"value": PLANTED, "source": "host", "reason": None},
                                     "gpu": {"value": None, "source": None, "reason": PLANTED}}  # fmt: skip
    content["warnings"] = [PLANTED]
    content["note"] = PLANTED
    content["tokens_spent"] = {PLANTED: 3}
    return Record.model_validate(content)


def _plant(value: Any, key: str, fixed: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: _plant(v, k, fixed) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plant(v, key, fixed) for v in value]
    return PLANTED if isinstance(value, str) and key not in fixed else value


EXTREME = (1e308, -1e308, -1.0, 0.0, 5e-324, 1e16)


def extreme(value: float) -> Record:
    """A record in which every number of every measured cell has one absurd value."""
    made = records.record(
        [
            records.prefill("8K", 8192, 100.0, 10.0),
            records.prefill("16K", 16384, 100.0, 10.0),
            *(furnished(records.decode("8K", 8192, n, 100.0, ttft_ms=5.0, itl_ms=6.0, active=1.0)) for n in (1, 2)),
            records.burst("8K", 8192, 2, 10.0),
        ]
    )
    content = made.model_dump()
    for cell in content["cells"]:
        for part in ("prefill", "decode", "burst", "telemetry", "window", "self_check", "tokens", "attempts"):
            cell[part] = _replaced(cell[part], value)
    return Record.model_validate(content)


def _replaced(value: Any, number: float) -> Any:
    if isinstance(value, dict):
        return {k: _replaced(v, number) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(v, number) for v in value]
    return number if isinstance(value, float) else value


def many(cells: int) -> Record:
    """A record of very many cells, each with its own context and number of requests."""
    made = [records.decode(f"c{i}", i + 1, i + 1, 10.0 + i, active=1.0) for i in range(cells)]
    return records.record([cell.model_copy(update={"status": Status.VALID}) for cell in made])


def named(name: str) -> Record:
    """A record by name, of the kinds that pages are tried with."""
    made: dict[str, Callable[[], Record]] = {
        "seed": records.seed_page, "full": full_seed, "every": records.every_kind,
        "planted": lambda: planted(full_seed(), statuses=False),
        "planted-all": lambda: planted(records.every_kind(), statuses=True), "extreme": lambda: extreme(1e308),
    }  # fmt: skip
    return made[name]()


# pairs of records, and more


def changed(record: Record, factor: float, *, version: str = "0.5.7") -> Record:
    """The record of another run: another version and flag, each rate by the factor, TTFT and ITL the other way."""
    made = record.model_copy(deep=True)
    made.id = f"{record.id}-{version}"
    made.engine.version = records.fact(version)
    made.engine.launch_command = records.fact(f"{record.engine.launch_command.value} --new-flag {version}")
    for cell in made.cells:
        for rate in [part.total_tok_s for part in (cell.decode,) if part] + [
            part.prefill_tok_s for part in (cell.prefill,) if part
        ]:
            for name in ("value", "low", "high"):
                if (old := getattr(rate, name)) is not None:
                    setattr(rate, name, old * factor)
        if cell.decode is not None:
            for spread in (cell.decode.ttft_ms, cell.decode.itl_ms):
                if spread.p50 is not None:
                    spread.p50 = spread.p50 / factor
    return made


def with_intervals(record: Record) -> Record:
    made = record.model_copy(deep=True)
    for cell in made.cells:
        for d in (cell.decode.ttft_ms, cell.decode.itl_ms, cell.decode.per_request_tok_s) if cell.decode else ():
            if d.p50 is not None:
                d.p50_low, d.p50_high = d.p50 * 0.995, d.p50 * 1.005
    return made


def pair_of_runs() -> Comparison:
    """The seed page against itself: 8 % slower at one request, else 5 % faster, one cell failed, one not planned."""
    a = full_seed()
    b = changed(a, 1.05)
    for cell in b.cells:
        if cell.decode is not None and cell.concurrency == 1:
            rate = cell.decode.total_tok_s
            for name in ("value", "low", "high"):
                setattr(rate, name, getattr(rate, name) / 1.05 * 0.92)
        if cell.id == "d/8192/16":
            cell.status, cell.error = Status.FAILED, "CUDA out of memory"
        if cell.id == "d/32768/2":  # as fast as before
            assert cell.decode is not None
            cell.decode.total_tok_s = records.rate(657.4)
    b.cells = [cell for cell in b.cells if cell.id != "d/65536/4"]
    return compare([with_intervals(a), with_intervals(b)], names=["results/main", "results/pr"])


def comparison(name: str) -> Comparison:
    """A comparison by name, of the kinds that pages are tried with."""
    seed, every = records.seed_page(), records.every_kind()
    if name == "demo":
        return compare([every, changed(every, 0.9)])
    if name == "every":
        return compare([every, seed])
    if name == "planted":
        full = full_seed()
        hostile = planted(full, statuses=False)
        return compare([hostile, changed(hostile, 1.1)], names=[PLANTED, PLANTED])
    if name == "planted-all":
        return compare([every, planted(every, statuses=True)], names=[PLANTED, "b"])
    if name == "extreme":
        values = EXTREME
        return compare([extreme(v) for v in (1e308, 5e-324, *values)], sides=[0, *range(1, len(values) + 2)])
    if name == "many-sides":
        return compare([seed, changed(seed, 1.1), changed(seed, 0.9, version="0.5.8"), every], sides=[0, 1, 2, 3])
    if name == "repeats":
        runs = [changed(seed, factor, version=v) for v in ("1", "2") for factor in (1.0, 1.003, 0.998)]
        return compare(runs, sides=[0, 0, 0, 1, 1, 1], names=[f"r/{i}" for i in range(6)])
    return pair_of_runs()
