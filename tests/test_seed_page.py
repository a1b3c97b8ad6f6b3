"""The seed's page, again, on a cut-down matrix: statuses, figures against the rig's log, contamination caught.

The whole of it is `python -m benchmarks.seed_page`. A machine that other work disturbs makes the rig late: then its log
still holds flatout to account, but the page does not (see `Held.disturbed`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from benchmarks import seed_page, seed_truth
from benchmarks.seed_truth import Fill, Held, Part
from hypothesis import given
from hypothesis import strategies as st

from flatout.plan import Limits, plan
from flatout.record import Warmup
from flatout.rig import RigConfig
from flatout.rig.config import profile_from_seed
from flatout.run.warmup import GO_S
from flatout.suite import SUITES, K, Suite

SCALE = 0.1
LIMITS = Limits(model_length=262_144, kv_tokens=1_310_720, max_running=32)
CUT: Suite = replace(
    SUITES["full"], prefill=(8 * K, 64 * K), decode=(8 * K, 64 * K), concurrency=(1, 8, 64), precision=None
)
"""Valid, queued and over-capacity cells; one window length, 30 s of the page."""


@pytest.fixture(scope="module")
def drained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """Leftovers planted that the engine's cancel call ends, as SGLang's does."""
    results = tmp_path_factory.mktemp("drained")
    yield seed_truth.measure(CUT, SCALE, results, rates="total", warmup=False)


@pytest.fixture(scope="module")
def undrained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """Draining switched off, and leftovers that run to their end."""
    suite = replace(seed_truth.fixed(CUT, 5.0), concurrency=(2, 4, 8, 16), decode=(8 * K,))
    results = tmp_path_factory.mktemp("undrained")
    knobs = {"leftover_abortable": False}
    yield seed_truth.measure(suite, SCALE, results, rates="total", knobs=knobs, warmup=False, drain=False)


def test_the_table_of_statuses_is_the_page_and_the_plan() -> None:
    """All 55 rows: the page's status as the page has it, ours as the plan decides it, each difference with its why."""
    page, expected = seed_truth.page_cells(), seed_truth.expected_cells()
    assert len(expected) == len(page) == 55
    planned = {c.id: c for c in plan(SUITES["full"], LIMITS)}
    assert [e.id for e in expected if e.id not in planned] == [] and len(planned) == 55
    for row in expected:
        assert row.seed == page[row.phase, row.context, row.concurrency]["status"]
        cell = planned[row.id]
        ours = ("requests_queued" if cell.will_queue else "valid") if cell.verdict == "measure" else cell.verdict
        assert row.flatout == ours, row
        assert (row.why is not None) == (row.seed != row.flatout), row
    assert Counter(row.flatout for row in expected) == {"valid": 37, "requests_queued": 2, "over_capacity": 16}


def test_the_profile_has_the_pages_limits() -> None:
    knobs = profile_from_seed(seed_truth.PAGE)
    assert (knobs["model_len"], knobs["kv_tokens"], knobs["max_running"]) == (262_144, 1_310_720, 32)
    assert RigConfig.from_dict({**knobs, "dialect": "sglang"}).prefill_table[0] == (8192.0, 37100.0)


def test_eleven_cells_of_the_page_were_over_full() -> None:
    assert seed_truth.seed_contaminated() == 11


def test_statuses_are_the_expected_ones(drained: Part) -> None:
    held = seed_truth.hold(drained, "total")
    assert len(held) == 8
    wrong = [(h.expected.id, h.status, h.cell.flags, h.disturbed) for h in held if not h.status_ok]
    assert wrong == []
    queued = drained.cell("d/8192/64")
    assert queued is not None and queued.decode is not None
    assert queued.decode.active_server_mean == pytest.approx(32, abs=1)
    assert queued.decode.waiting_server_mean == pytest.approx(32, abs=1)


def test_every_reading_is_that_of_the_log(drained: Part) -> None:
    for held in seed_truth.hold(drained, "total"):
        if held.status in ("valid", "requests_queued"):
            assert {"tok_s", "ttft_ms"} <= set(held.figures)
        for name, figure in held.figures.items():
            assert figure.log_ok or held.disturbed, (held.expected.id, name, figure, held.disturbed)


def test_the_page_comes_back(drained: Part) -> None:
    """Where nothing disturbed the rig or the client: total, TTFT and prefill speed are the page's."""
    held = [h for h in seed_truth.hold(drained, "total") if h.figures and not h.disturbed]
    for one in held:
        for name, figure in one.figures.items():
            assert figure.page_ok in (True, None) or figure.covered, (one.expected.id, name, figure)


def test_draining_keeps_every_cell_clean(drained: Part) -> None:
    found = seed_truth.fills(drained)
    assert len(found) == 5
    assert all(not f.over_full and not f.flagged for f in found), found
    ended = Counter(drained.truth.reason)
    assert ended["aborted"] > ended["leftover"], "the cancel call should have ended what was left over"


def test_without_draining_every_over_full_cell_is_flagged(undrained: Part) -> None:
    found = seed_truth.fills(undrained)
    over = [f for f in found if f.over_full]
    assert len(over) >= 2, "the planted leftovers should have filled later cells"
    assert seed_truth.missed(found) == []
    flagged = {f.id for f in found if f.flagged}
    for cell in undrained.record.cells:
        if cell.id in flagged:
            assert cell.status == "doubtful" and cell.attempts, "a contaminated cell is measured once more"


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=30))
def test_the_logs_median_is_the_usual_one_where_nothing_waits(values: list[float]) -> None:
    assert seed_truth.median(values) == pytest.approx(statistics.median(values))
    assert seed_truth.median(values, [0.5] * 9) == pytest.approx(statistics.median(values)), "cut before any ended"
    assert math.isnan(seed_truth.median(values, [1e5] * (len(values) + 1))), "over half wait for longer than any ended"


def test_a_missed_or_invented_contamination_is_told() -> None:
    """The benchmark's own judgement can fail."""
    clean, full = Fill("a", 4, 4.0, False), Fill("b", 4, 6.0, True)
    assert seed_truth.missed([clean, full]) == []
    assert len(seed_truth.missed([replace(clean, flagged=True), replace(full, flagged=False)])) == 2
    assert seed_truth.missed([Fill("c", 100, 105.5, False)]) == []
    told, good = seed_page.contamination_lines("x", [replace(full, flagged=False)])
    assert not good and "WRONG b" in told[1]


def test_a_reading_that_is_off_is_told(drained: Part) -> None:
    held = next(h for h in seed_truth.hold(drained, "total") if h.expected.id == "d/8192/8")
    figure = held.figures["tok_s"]
    off = replace(figure, read=figure.log * 1.02, log_ok=seed_truth.near(figure.log * 1.02, figure.log, 0.01))
    bad: Held = replace(held, figures={"tok_s": off}, disturbed=None)
    lines, good = seed_page.summary([bad], ("tok_s",))
    assert not good and "d/8192/8" in lines[1]
    assert "OFF LOG" in seed_page.table([bad], [])


def test_the_unscaled_time_is_told(drained: Part) -> None:
    """Five windows of 30 s, and what is sent before them: some minutes, as the rig worked for a tenth of them."""
    seconds = seed_truth.unscaled_s(drained)
    assert 5 * 30 < seconds < seed_truth.LONGEST_S
    told, short = seed_page.duration_line(drained)
    assert short and f"{seconds / 60:.1f} min" in told and "TOO LONG" not in told
    told, short = seed_page.duration_line(replace(drained, took_s=drained.took_s + seed_truth.LONGEST_S))
    assert not short and "TOO LONG" in told


def test_only_the_servers_time_is_stretched(drained: Part) -> None:
    """4 s of work in a run of 10 s at a tenth: 6 s of the client's own, and 40 s."""
    level = {"level_ns": [0, 3 * 10**9, 5 * 10**9, 6 * 10**9], "level_running": [2, 0, 0, 0]}
    columns = {name: np.array(values) for name, values in (level | {"level_waiting": [1, 0, 1, 0]}).items()}
    part = replace(drained, took_s=10.0, scale=0.1, truth=replace(drained.truth, taken_ns=9 * 10**9, **columns))
    assert seed_truth.unscaled_s(part) == pytest.approx(46.0)
    assert seed_truth.unscaled_s(replace(part, scale=1.0)) == pytest.approx(10.0)
    warmups = [Warmup(what="w", speeds=[1.0, 1.0], unit="events/s", repeats=True)]
    warmed = replace(part, record=part.record.model_copy(update={"warmups": warmups}))
    assert seed_truth.unscaled_s(warmed) == pytest.approx(46.0 - 2 * GO_S * 9)


def test_what_the_machine_disturbed_proves_nothing(drained: Part, capsys: pytest.CaptureFixture[str]) -> None:
    held = [replace(h, disturbed=None) for h in seed_truth.hold(drained, "total")]
    assert seed_page.proven("x", held)
    assert not seed_page.proven("x", [replace(h, disturbed="the rig was late") for h in held])
    assert "NOT PROVEN" in capsys.readouterr().out
