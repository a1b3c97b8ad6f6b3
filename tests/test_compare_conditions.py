"""`--fail-if`: what parses, what it means, and which cells break it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.compare import CompareError, Condition, Outcome, check, compare, fail_if
from flatout.compare.conditions import Span, Where
from flatout.compare.figures import figure, names
from flatout.flags import Status
from flatout.metrics import PARTS
from flatout.record import Record
from tests import records

K = 1024


def page(*speeds: tuple[int, int, float], half: float = 0.01, **more: float) -> Record:
    """Decode cells: (context in K, at once, tok/s)."""
    cells = []
    for context, n, tok_s in speeds:
        cell = records.decode(f"{context}K", context * K, n, tok_s, **more)
        assert cell.decode is not None
        cell.decode.total_tok_s = records.rate(tok_s, half)
        cells.append(cell)
    return records.record(cells)


def outcome(a: Record, b: Record, text: str) -> Outcome:
    (made,) = check(compare([a, b]), fail_if(text))
    return made


def broken(a: Record, b: Record, text: str) -> list[str]:
    return [f"{c.key.context} x {c.key.concurrency}" for c in outcome(a, b, text).broken]


BASE = page((8, 1, 100.0), (8, 4, 300.0), (32, 1, 80.0), (32, 4, 200.0), ttft_ms=100.0, itl_ms=10.0)
WORSE = page((8, 1, 90.0), (8, 4, 300.0), (32, 1, 72.0), (32, 4, 230.0), ttft_ms=115.0, itl_ms=10.0)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("total_tok_s < -3%", ["8K x 1", "32K x 1"]),
        ("total_tok_s < -15%", []),
        ("total_tok_s<=-3 % [8k x 1]", ["8K x 1"]),
        ("total_tok_s [32k-64k × 1-2] < -3%", ["32K x 1"]),
        ("total_tok_s < -3% [x 4]", []),
        ("total_tok_s > +10% [* x 4, decode]", ["32K x 4"]),
        ("total_tok_s < 95 [8k]", ["8K x 1"]),
        ("total_tok_s < -9", ["8K x 1"]),
        ("itl_ms.p99 > 13.9", ["8K x 1", "8K x 4", "32K x 1", "32K x 4"]),
        ("itl_ms.p99 > +1%", []),
        ("ttft_ms > +10%", ["8K x 1", "8K x 4", "32K x 1", "32K x 4"]),
        ("ttft_ms > 10%; total_tok_s < -50%", None),
    ],
)
def test_which_cells_break(text: str, cells: list[str] | None) -> None:
    if cells is None:
        made = check(compare([BASE, WORSE]), fail_if(text))
        assert [o.failed for o in made] == [True, False]
        return
    assert broken(BASE, WORSE, text) == cells
    assert outcome(BASE, WORSE, text).failed == bool(cells)


def test_noise_is_undecided_and_not_broken() -> None:
    a, b = page((8, 1, 100.0), half=0.05), page((8, 1, 96.0), half=0.05)
    made = outcome(a, b, "total_tok_s < -3%")
    assert not made.failed and len(made.undecided) == 1 and "cannot tell" in made.undecided[0].why


def test_a_demanded_gain_is_broken_by_no_change() -> None:
    """`< +2%` asks for two percent more: not seeing any is no excuse."""
    assert outcome(BASE, BASE, "total_tok_s < +2%").failed
    assert not outcome(BASE, page((8, 1, 110.0)), "total_tok_s < +2%").failed


def test_a_cell_that_is_gone_breaks() -> None:
    gone = records.record([records.decode("8K", 8 * K, 1, status=Status.FAILED, reason="died")])
    made = outcome(BASE, gone, "total_tok_s < -3%")
    assert made.failed and made.broken[0].why == "measured on side A, failed on side B"
    assert outcome(BASE, gone, "itl_ms.p99 > 500").failed


def test_a_gate_that_checks_nothing_fails() -> None:
    made = outcome(BASE, WORSE, "total_tok_s < -3% [64k]")
    assert made.failed and made.checked == 0
    assert outcome(BASE, WORSE, "prefill_tok_s < -3%").failed


def test_a_missing_percentile_is_undecided() -> None:
    """100 samples are needed for p99: too few are no pass and no failure."""
    made = outcome(BASE, BASE, "ttft_ms.p99 > 500")
    assert not made.failed and len(made.undecided) == 4


def test_valid_only() -> None:
    doubtful = BASE.model_copy(deep=True)
    doubtful.cells[0].status = Status.DOUBTFUL
    assert outcome(doubtful, WORSE, "total_tok_s < -3%").checked == 4
    assert outcome(doubtful, WORSE, "total_tok_s < -3% [valid]").checked == 3


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "total_tok_s", "total_tok_s < ", "total_tok_s = 3", "total_toks < 3", "itl_ms.p95 > 5", "x" * 3000,
        "total_tok_s < 3 [8k] [16k]", "total_tok_s < 3 [8k x 1 x 2]", "total_tok_s < 3 [8q]", "total_tok_s < nan",
        "total_tok_s < 3 [64k-8k]", "total_tok_s < 3 [8k x 1k]", "total_tok_s < 3 [prefill, decode]",
        "total_tok_s < 3 [,]", "total_tok_s < 1e5", "total_tok_s < 3 [0.3k]", "total_tok_s.p50 < 3",
    ],
)  # fmt: skip
def test_what_does_not_parse(text: str) -> None:
    with pytest.raises(CompareError):
        fail_if(text)


def test_a_mistyped_figure_is_helped() -> None:
    with pytest.raises(CompareError, match="did you mean total_tok_s"):
        fail_if("total_toks < 3")


spans = st.tuples(st.integers(1, 1 << 21), st.integers(0, 1 << 21)).map(lambda p: Span(p[0], p[0] + p[1]))
contexts = st.none() | spans | st.sampled_from([Span(word="max"), Span(word="full")])
wheres = st.builds(
    Where, contexts, st.none() | spans, st.none() | st.sampled_from(["prefill", "decode", "burst"]), st.booleans()
)
figures = st.sampled_from([n for n, spread in names().items() if not spread]) | st.builds(
    "{}.{}".format, st.sampled_from([n for n, spread in names().items() if spread]), st.sampled_from(PARTS)
)


@given(figures, st.sampled_from(["<", "<=", ">", ">="]), st.integers(-(10**9), 10**9),
       st.sampled_from(["percent", "change", "value"]), wheres)  # fmt: skip
def test_a_condition_parses_to_itself(name: str, op: str, thousandths: int, kind: str, where: Where) -> None:
    number = thousandths / 1000
    if kind == "value":
        number = abs(number)
    limit = number / 100 if kind == "percent" else number
    made = Condition(figure(name), op, limit, kind, where)  # type: ignore[arg-type]
    (again,) = fail_if(str(made))
    assert (again.figure, again.op, again.kind, again.where) == (made.figure, op, kind, where)
    assert again.limit == pytest.approx(limit)


@given(st.text(max_size=80) | st.text("total_tok_sitlms.p9 <>=-+%[]x×*k,;8146max", max_size=60))
def test_anything_typed_is_a_condition_or_a_clear_error(text: str) -> None:
    try:
        for condition in fail_if(text):
            assert fail_if(str(condition))
    except CompareError as error:
        assert str(error)


def test_every_figure_of_the_record_can_be_asked_for() -> None:
    made = compare([records.every_kind(), records.every_kind()])
    for name, spread in names().items():
        text = f"{name}.p90 > +1%" if spread else f"{name} > +1%"
        (found,) = check(made, fail_if(text))
        assert not found.broken
