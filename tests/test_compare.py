"""Comparisons: what differs is found and named, what does not is not, and nothing in a record breaks them."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flatout.compare import CompareError, Comparison, Verdict, check, compare, fail_if, read_sides
from flatout.compare.figures import figure, read
from flatout.compare.ratio import NARROWEST, Estimate, estimate, least_shown, level_of, of_samples, ratio, together
from flatout.flags import Flag as FlagName
from flatout.flags import Status
from flatout.measure.interval import rate_interval
from flatout.record import Cell, Flag, Rate, Record, dump
from flatout.show import comparison as show
from flatout.show import document
from flatout.show.page import compared as page
from tests import records
from tests.hostile import HOSTILE, hostile, tables

K = 1024


def scaled(record: Record, factor: float, *cells: str) -> Record:
    """The record with other total tok/s in some cells (default: in all)."""
    made = record.model_copy(deep=True)
    for cell in made.cells:
        if cell.decode is not None and (not cells or cell.id in cells):
            rate = cell.decode.total_tok_s
            for name in ("value", "low", "high"):
                if getattr(rate, name) is not None:
                    setattr(rate, name, getattr(rate, name) * factor)
    return made


def two(a: float = 100.0, b: float = 100.0, half: float = 0.01, **more: Any) -> list[Record]:
    made = []
    for tok_s in (a, b):
        cell = records.decode("8K", 8 * K, 1, tok_s, **more)
        assert cell.decode is not None
        cell.decode.total_tok_s = records.rate(tok_s, half)
        made.append(records.record([cell]))
    return made


def verdicts(made: Comparison) -> dict[str, Verdict]:
    return {show.cell_name(c.key): c.speed.verdict for c in made.pairs[0].cells if c.speed is not None and c.measured}


def test_a_record_against_itself_shows_nothing() -> None:
    page = records.seed_page()
    made = compare([page, page])
    pair = made.pairs[0]
    assert set(verdicts(made).values()) == {Verdict.SAME}
    assert pair.mean_ratio is not None and pair.mean_ratio.value == 1.0 and not pair.differences and not pair.only_a
    assert show.EQUAL in document.text(show.document(made), 110)


def test_differences_are_found_and_counted() -> None:
    page = records.seed_page()
    made = compare([page, scaled(scaled(page, 0.95, "d/8192/1"), 1.04, "d/8192/4", "d/131072/8")])
    seen = {name: v for name, v in verdicts(made).items() if v != Verdict.SAME}
    assert seen == {"8K × 1": "slower", "8K × 4": "faster", "128K × 8": "faster"}
    text = document.text(show.document(made), 110)
    assert "2 faster, 1 slower" in text and "0.950" in text
    rows = {row[0]: row for row in tables(document.markdown(show.document(made)))[0]}
    assert rows["8K × 1"][1:6] == ["454.2 ±0.4 %", "431.5 ±0.4 %", "0.950", "0.945–0.955", "slower"]


def test_times_get_faster_as_they_shrink() -> None:
    sides = two(ttft_ms=100.0, itl_ms=10.0), two(ttft_ms=80.0, itl_ms=12.0)
    both = [side[0] for side in sides]
    for record in both:
        d = record.cells[0].decode
        assert d is not None
        for spread in (d.ttft_ms, d.itl_ms):
            assert spread.p50 is not None
            spread.p50_low, spread.p50_high = spread.p50 * 0.98, spread.p50 * 1.02
    figures = compare(both).pairs[0].cells[0].figures
    assert figures["ttft_ms"].verdict == Verdict.FASTER and figures["itl_ms"].verdict == Verdict.SLOWER
    assert figures["ttft_ms"].ratio is not None and figures["ttft_ms"].ratio.value == pytest.approx(0.8)
    assert figures["per_request_tok_s"].verdict == Verdict.UNKNOWN  # it has no interval


def test_a_percentile_is_compared_by_its_own_interval() -> None:
    both = [two(itl_ms=10.0)[0], two(itl_ms=10.0)[0]]
    for record, p99 in zip(both, (30.0, 36.0), strict=True):
        for cell in record.cells:
            assert cell.decode is not None
            cell.decode.itl_ms.p99 = p99
            cell.decode.itl_ms.p99_low, cell.decode.itl_ms.p99_high = 0.97 * p99, 1.03 * p99
            cell.decode.itl_ms.p90, cell.decode.itl_ms.reasons = p99, {"p90_interval": "needs 36 requests, has 9"}
    value, made, _ = read(both[1].cells[0], figure("itl_ms.p99"))
    assert value == 36.0 and made is not None and (made.low, made.high) == (0.97 * 36.0, 1.03 * 36.0)
    without = read(both[1].cells[0], figure("itl_ms.p90"))[1]
    assert without is not None and without.low is None and without.reason == "needs 36 requests, has 9"


def test_prefill_ttft_gets_its_interval_from_the_samples() -> None:
    both = []
    for factor in (1.0, 1.5):
        cell = records.prefill("8K", 8 * K, 37_000.0 / factor, 220.0 * factor)
        assert cell.prefill is not None
        for sample, noise in zip(cell.prefill.samples, (0.99, 1.0, 1.01), strict=True):
            sample.ttft_ms = 220.0 * factor * noise
        both.append(records.record([cell]))
    made = compare(both).pairs[0].cells[0].figures["ttft_ms"]
    assert made.verdict == Verdict.SLOWER and made.ratio is not None and made.ratio.df == pytest.approx(4.0)


def test_doubtful_cells_are_never_called_different_without_saying_so() -> None:
    flags = [Flag(name=FlagName.CONTAMINATED, detail="7.5 running for 2")]
    both = [
        two(100.0)[0],
        records.record([records.decode("8K", 8 * K, 1, 50.0, status=Status.DOUBTFUL, flags=flags)]),
    ]
    made = compare(both)
    pair = made.pairs[0]
    assert pair.cells[0].doubts == ("B contaminated",)
    assert pair.count(Verdict.SLOWER) == 0 and pair.count(Verdict.SLOWER, doubtful=True) == 1
    assert pair.mean_ratio is None
    for text in (document.text(show.document(made), 120), document.markdown(show.document(made))):
        assert "slower, doubtful: B contaminated" in text
        assert "1 doubtful (1 slower)" in text
    told = " ".join(document.text(show.outcome_items(check(made, fail_if("total_tok_s < -3%"))), 100).split())
    assert "FAILED" in told and "doubtful: B contaminated" in told


def test_flags_that_explain_stand_beside_a_difference() -> None:
    both = two(100.0, 80.0)
    both[1].cells[0].flags = [Flag(name=FlagName.THROTTLED, detail="power")]
    assert "slower (B throttled)" in document.text(show.document(compare(both)), 120)


def test_what_differs_is_named() -> None:
    a, b = two()
    b.engine.version.value = "0.5.7"
    b.engine.launch_command.value = (
        "/opt/x/sglang serve --model-path Qwen/Qwen3.5-4B --tp 2 --port 9 --api-key <redacted>"
    )
    a.engine.launch_command.value = (
        "/opt/y/sglang serve --model-path Qwen/Qwen3.5-4B --tp 1 --port 8 --api-key <redacted>"
    )
    b.hardware.facts["gpu"] = records.fact("H100", source="host")
    b.model.quantization = records.fact("FP8")
    b.prompts.mode = "shared"
    b.plan.suite = "full/2"
    b.room.kv_tokens = records.fact(1_000_000)
    found = {(d.what, d.name): (d.a, d.b) for d in compare([a, b]).pairs[0].differences}
    assert found[("version", "version")] == ("0.5.6.post3.dev9269+g834400705", "0.5.7")
    assert found[("launch command", "options")] == ("--tp 1", "--tp 2")  # paths, ports and keys do not count
    assert found[("hardware", "gpu")] == ("H200 NVL", "H100")
    assert {"model", "prompts", "suite", "room"} < {what for what, _ in found}
    text = document.text(show.document(compare([a, b])), 110)
    assert "NOT EQUAL: hardware, version, model, launch command, prompts, suite, room" in text.replace("\n", " ")


def test_what_is_not_known_is_not_called_equal() -> None:
    a, b = two()
    b.hardware.describes = "client only"
    b.engine.commit = records.fact(None)
    pair = compare([a, b]).pairs[0]
    assert any("server's machine is not known" in u for u in pair.unknown)
    assert any("commit is known on one side only" in u for u in pair.unknown)
    assert show.EQUAL not in document.text(show.document(compare([a, b])), 110)


def test_statuses_that_changed_and_cells_of_one_side() -> None:
    a = records.record([records.decode("8K", 8 * K, n, 100.0) for n in (1, 2)])
    b = records.record([
        records.decode("8K", 8 * K, 1, status=Status.FAILED, error="boom"), records.decode("8K", 8 * K, 4, 100.0),
    ])  # fmt: skip
    pair = compare([a, b]).pairs[0]
    assert [(c.a_status, c.b_status) for c in pair.cells if c.changed] == [(("valid",), ("failed",))]
    assert [k.concurrency for k in pair.only_a] == [2] and [k.concurrency for k in pair.only_b] == [4]
    text = document.text(show.document(compare([a, b])), 110)
    assert "8K × 1: valid → failed" in text and "Only in A" in text and "B: failed" in text


def test_repeats_are_pooled_by_configuration() -> None:
    runs = [two(v)[0] for v in (100.0, 101.0, 99.0)]
    others = [two(v)[0] for v in (110.0, 111.5, 109.0)]
    for record in others:
        record.engine.version.value = "0.5.7"
    made = compare([*runs, *others])
    assert [len(side.records) for side in made.sides] == [3, 3]
    speed = made.pairs[0].cells[0].speed
    assert speed is not None and speed.a is not None and speed.ratio is not None
    assert speed.a.runs == (100.0, 101.0, 99.0) and speed.verdict == Verdict.FASTER
    assert speed.ratio.value == pytest.approx((110.0 * 111.5 * 109.0 / (100.0 * 101.0 * 99.0)) ** (1 / 3))
    assert "3 runs" in document.text(show.document(made), 110)


def test_a_spread_between_runs_wins_over_narrow_windows() -> None:
    a = [two(v, half=0.001)[0] for v in (100.0, 106.0, 94.0)]
    b = [two(v, half=0.001)[0] for v in (101.0, 107.0, 95.0)]
    speed = compare([*a, *b], sides=[0, 0, 0, 1, 1, 1]).pairs[0].cells[0].speed
    assert speed is not None and speed.ratio is not None
    assert speed.verdict == Verdict.SAME and speed.ratio.how == "between repeats"
    alone = compare([a[0], b[1]]).pairs[0].cells[0].speed
    assert alone is not None and alone.verdict == Verdict.FASTER  # which one run each would have claimed


def test_runs_of_one_configuration_are_compared_with_the_first() -> None:
    made = compare([two(v)[0] for v in (100.0, 100.5, 90.0)])
    assert len(made.pairs) == 2 and any("same configuration" in note for note in made.notes)
    assert [p.cells[0].speed.verdict for p in made.pairs if p.cells[0].speed] == [Verdict.SAME, Verdict.SLOWER]


def test_directories_are_sides(tmp_path: Any) -> None:
    for side, speed in (("main", 100.0), ("pr", 90.0)):
        for i in range(3):
            where = tmp_path / side / f"run{i}"
            where.mkdir(parents=True)
            (where / "record.json").write_text(dump(two(speed + i / 10)[0]), encoding="utf-8")
    found, sides, names = read_sides([tmp_path / "main", tmp_path / "pr"])
    assert sides == [0, 0, 0, 1, 1, 1] and len(names) == 6
    made = compare(found, sides=sides, names=names)
    assert verdicts(made) == {"8K × 1": Verdict.SLOWER}
    plain = read_sides([tmp_path / "main" / "run0", tmp_path / "pr" / "run0" / "record.json"])
    assert plain[1] is None and len(plain[0]) == 2
    with pytest.raises(CompareError, match="no record in"):
        read_sides([tmp_path])


@pytest.mark.parametrize("count", [0, 1])
def test_too_few(count: int) -> None:
    with pytest.raises(CompareError, match="two records"):
        compare(two()[:count])
    with pytest.raises(CompareError, match="one side"):
        compare(two(), sides=[0, 0])


def test_many_cells_are_refused_soon() -> None:
    cell = records.decode("8K", 8 * K, 1)
    big = records.record([cell]).model_copy(update={"cells": [cell] * 1_000_000})
    start = time.monotonic()
    with pytest.raises(CompareError, match="cells can be compared"):
        compare([big, big])
    assert time.monotonic() - start < 5


def test_ten_thousand_cells_take_bounded_time() -> None:
    rng = np.random.default_rng(0)
    cells = [records.decode("8K", 8 * K + i, 1, float(v)) for i, v in enumerate(rng.uniform(50, 150, 5000))]
    start = time.monotonic()
    made = compare([records.record(cells), scaled(records.record(cells), 1.05)])
    assert set(verdicts(made).values()) == {Verdict.FASTER}
    document.markdown(show.document(made))
    assert time.monotonic() - start < 60


def measured_cell(rng: np.random.Generator, tok_s: float, n: int) -> Cell:
    """A cell whose rate and interval come from the code that measures."""
    noise = rng.normal(1.0, 0.0532 * math.sqrt(1.3 / 0.7), 256)
    made = rate_interval(np.maximum(noise, 0) * tok_s * 10 / 256, bin_s=10 / 256)
    cell = records.decode("8K", 8 * K + n, 1, 1.0)
    assert cell.decode is not None
    cell.decode.total_tok_s = made
    return cell


def test_equal_speeds_are_seldom_told_apart_and_a_true_change_is_found() -> None:
    """A small copy of benchmarks/compare_sim.py; limits leave four standard errors for the small number of pairs."""
    rng = np.random.default_rng(7)

    def run(change: float, cells: int) -> Record:
        return records.record([measured_cell(rng, 100.0 * change, n) for n in range(cells)])

    pairs = 300
    same = [set(verdicts_of(compare([run(1.0, 1), run(1.0, 1)]))) == {Verdict.SAME} for _ in range(pairs)]
    found = [verdicts_of(compare([run(1.0, 1), run(1.025, 1)])) == [Verdict.FASTER] for _ in range(pairs)]
    whole = [set(verdicts_of(compare([run(1.0, 20), run(1.0, 20)]))) == {Verdict.SAME} for _ in range(100)]
    assert np.mean(same) >= 0.95 - 4 * math.sqrt(0.05 * 0.95 / pairs)
    assert np.mean(found) >= 0.90 - 4 * math.sqrt(0.1 * 0.9 / pairs)
    assert np.mean(whole) >= 0.95 - 4 * math.sqrt(0.05 * 0.95 / 100)


def verdicts_of(made: Comparison) -> list[Verdict]:
    return [c.speed.verdict for c in made.pairs[0].cells if c.speed is not None]


def test_least_shown_is_what_nine_of_ten_would_find() -> None:
    speed = compare(two(half=0.01)).pairs[0].cells[0].speed
    assert speed is not None
    # (1.960 + 1.282) x sqrt(2) x 0.01 / 1.960
    assert speed.least == pytest.approx(math.expm1(3.2415 * math.sqrt(2) * 0.01 / 1.96), rel=0.02)


positive = st.floats(1e-6, 1e9)
widths = st.floats(0.0005, 0.5)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    value, low, high = draw(positive), draw(widths), draw(widths)
    made = estimate(
        value, value * (1 - low), value * (1 + high), n=draw(st.integers(2, 300)), between=draw(st.booleans())
    )
    assert made is not None
    return made


@given(st.lists(estimates(), min_size=1, max_size=4), st.lists(estimates(), min_size=1, max_size=4))
def test_a_ratio_turned_round_is_its_reciprocal(a: list[Estimate], b: list[Estimate]) -> None:
    one, other = ratio(a, b), ratio(b, a)
    assert one.value == pytest.approx(1 / other.value)
    assert None not in (one.low, one.high, one.p, other.low, other.high, other.p)
    assert one.low <= one.value <= one.high  # type: ignore[operator]
    assert one.low == pytest.approx(1 / other.high, rel=1e-6)  # type: ignore[operator]
    assert one.p == pytest.approx(other.p, rel=1e-6, abs=1e-12) and 0 <= one.p <= 1  # type: ignore[operator]


@given(estimates(), positive)
def test_a_unit_changes_no_ratio(a: Estimate, unit: float) -> None:
    b = Estimate(a.value * unit, a.below, a.above, a.df)
    made = ratio([a], [b])
    assert made.value == pytest.approx(unit, rel=1e-6)
    assert (made.p == 1.0) == (made.value == 1.0) or made.p is not None


@given(st.lists(st.floats(0, 1), max_size=40))
def test_the_level_of_many_is_benjamini_and_hochbergs(chances: list[float]) -> None:
    shown, following = level_of(chances)
    m = len(chances)
    ranks = [k for k in range(1, m + 1) if sorted(chances)[k - 1] <= 0.05 * k / m]
    rejected = max(ranks, default=0)
    assert sum(p <= shown for p in chances) >= rejected if m and shown else True
    assert shown == (pytest.approx(0.05 * rejected / m) if m else 0.05)
    assert shown <= following <= 0.05


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.nan, math.inf])
def test_no_ratio_of_what_is_no_positive_number(value: float | None) -> None:
    assert estimate(value, value, value) is None and of_samples(value, [1.0, 2.0]) is None


def test_odd_intervals() -> None:
    reaches_0 = estimate(100.0, 0.0, 200.0)
    outside = estimate(100.0, 120.0, 130.0)
    exact = estimate(100.0, 100.0, 100.0)
    assert reaches_0 is not None and reaches_0.below == math.inf
    assert outside is not None and outside.below is None and outside.reason
    assert exact is not None and exact.below == pytest.approx(math.log1p(NARROWEST) / 1.96, rel=1e-3)
    made = ratio([exact], [reaches_0])
    assert made.low == 0.0 and made.p == pytest.approx(1.0)
    below = ratio([reaches_0], [estimate(50.0, 49.0, 51.0)])  # type: ignore[list-item]
    assert below.p == pytest.approx(1.0)  # A may be anything below 100


@settings(deadline=None, max_examples=25)
@given(HOSTILE, HOSTILE, st.integers(1, 160))
def test_hostile_records_are_compared_and_shown_harmlessly(one: str, other: str, width: int) -> None:
    made = compare([hostile(one), hostile(other)], names=["<script>\x1b[31m", "b\n\nb"])
    outcomes = check(made, fail_if("total_tok_s < -3%; itl_ms.p99 > 5; ttft_ms > +1; completed < 3; energy_j > +5%"))
    text = document.text(show.document(made, every=True), width)
    assert all(c.isprintable() or c == "\n" for c in text)
    json.dumps(show.data(made, outcomes), allow_nan=False)
    assert "<script" not in document.markdown(show.document(made, every=True))
    assert all(c.isprintable() or c == "\n" for c in document.text(show.outcome_items(outcomes), width))
    assert "<script" not in document.markdown(show.outcome_items(outcomes))
    from rich.cells import cell_len

    assert max(cell_len(line) for line in text.splitlines()) <= max(width, document.NARROWEST)


def test_every_kind_of_cell_against_the_seed_page() -> None:
    made = compare([records.every_kind(), records.seed_page()])
    assert made.pairs[0].only_b and "interrupted" in " ".join(made.notes)
    document.text(show.document(made, every=True), 80)
    document.markdown(show.document(made, every=True))


def test_each_later_side_is_told_by_its_own_letter() -> None:
    """Terminal, Markdown, JSON and the gate: never "B" for the third side."""
    base, faster = two(ttft_ms=100.0)
    partial = base.model_copy(
        update={"cells": [c.model_copy(update={"decode": None, "status": "failed"}) for c in base.cells]}
    )
    made = compare([base, faster, partial], sides=[0, 1, 2])
    assert [pair.letter for pair in made.pairs] == ["B", "C"]
    found = check(made, fail_if("total_tok_s < -3%"))
    told = [
        document.text(show.document(made)).split("C against A")[1],
        document.markdown(show.document(made)).split("**C against A**")[1],
    ]
    told = [text.split("B / A is the ratio")[0] for text in told]
    assert all("C: " in text and "B: " not in text and "B / A" not in text for text in told)
    assert "on side C" in document.text(show.outcome_items(found)) and show.data(made)["pairs"][1]["letter"] == "C"


# --- at the ends of all floats --------------------------------------------------------------------------------------

ends = st.one_of(
    st.sampled_from([5e-324, 1e-308, 2.3e-308, 1e-300, 1.0, 1e300, 1e304, 1e308, sys.float_info.max]),
    st.floats(min_value=5e-324, allow_infinity=False),
)


@st.composite
def extremes(draw: st.DrawFn) -> Estimate:
    """Any positive value with any interval that holds it, or none."""
    value = draw(ends)
    low = draw(st.one_of(st.none(), st.just(0.0), st.floats(0.0, value)))
    high = draw(st.one_of(st.none(), st.just(sys.float_info.max), st.floats(value, allow_infinity=False)))
    made = estimate(value, low, high, n=draw(st.integers(2, 9)), between=draw(st.booleans()))
    assert made is not None
    return made


@settings(max_examples=300, deadline=None)
@given(st.lists(extremes(), min_size=1, max_size=4), st.lists(extremes(), min_size=1, max_size=4))
@example([Estimate(1e308, 0.1, 0.1)] * 4, [Estimate(1e-308, 0.1, 0.1)] * 4)
def test_no_number_is_too_large_or_too_small_for_a_ratio(a: list[Estimate], b: list[Estimate]) -> None:
    made = [ratio(a, b), ratio(b, a)]
    made.append(together(made))
    for found in made:
        assert 0 < found.value < math.inf and not math.isnan(found.value)
        if found.low is not None and found.high is not None:
            assert 0 <= found.low <= found.value * (1 + 1e-9) and found.value <= found.high * (1 + 1e-9)
        assert found.p is None or 0 <= found.p <= 1
        least = least_shown(found, 0.05)
        assert least is None or math.isfinite(least)
    mean = of_samples(a[0].value, [one.value for one in (*a, *b)])
    assert mean is not None and mean.low is not None and mean.high is not None
    assert mean.low <= a[0].value <= mean.high


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(ends, ends), min_size=2, max_size=4))
@example([(1e308, 1e308), (1e-308, 1e-308)])
def test_records_with_any_positive_rates_are_compared_and_shown(rates: list[tuple[float, float]]) -> None:
    made = compare([extreme(number, *pair) for number, pair in enumerate(rates)])
    document.text(show.document(made, every=True), 100)
    document.markdown(show.document(made, every=True))
    json.dumps(show.data(made, check(made, fail_if("total_tok_s < -3%; itl_ms.p99 > 5"))), allow_nan=False)
    assert page.fragment(made).body


def extreme(number: int, prefill: float, total: float) -> Record:
    """A record with these rates, each with an interval around it; no two of the same configuration."""
    cells = [records.prefill("8K", 8 * K, 9000.0, 910.0)]
    cells += [records.decode("8K", 8 * K, n, 100.0) for n in (1, 4)]
    for cell, value in zip(cells, (prefill, total, total), strict=True):
        made = Rate(value=value, low=value * 0.9, high=min(value * 1.1, sys.float_info.max), interval="batches", n=30)
        if cell.prefill is not None:
            cell.prefill.prefill_tok_s = made
        if cell.decode is not None:
            cell.decode.total_tok_s = made
    return records.record(cells, id=f"run-{number}")
