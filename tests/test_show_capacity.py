"""How many at once: only what was tested and is sound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.flags import Status
from flatout.record import Cell
from flatout.show import capacity
from tests import records

K8 = 8 * 1024


def cell(n: int, each_tok_s: float | None, status: str = Status.VALID, active: float | None = None) -> Cell:
    if each_tok_s is None:
        return records.decode("8K", K8, n, status=status)
    return records.decode("8K", K8, n, each_tok_s * n, each_tok_s=each_tok_s, status=status, active=active)


def answer(*cells: Cell) -> capacity.Capacity:
    (found,) = capacity.of_cells(cells, 20.0)
    return found


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([cell(1, 90.0), cell(2, 50.0), cell(4, 19.9)], "2–3"),
        ([cell(1, 90.0), cell(2, 19.0)], "1"),
        ([cell(1, 20.0)], "≥1"),
        ([cell(1, 19.99), cell(2, 25.0)], "0"),
        ([cell(4, 12.0), cell(8, 5.0)], "<4"),
        ([cell(1, 90.0), cell(2, 18.0), cell(4, 30.0)], "1"),  # a larger count that meets it again is luck
        ([cell(8, 30.0), cell(4, 40.0), cell(16, 10.0)], "8–15"),  # whatever the order of measuring
        ([cell(1, 90.0), cell(2, 50.0, Status.DOUBTFUL)], "≥1?"),
        ([cell(1, 90.0), cell(2, 5.0, Status.DOUBTFUL), cell(4, 40.0), cell(8, 9.0)], "4–7"),
        ([cell(1, 90.0), cell(2, 50.0, Status.DOUBTFUL), cell(4, 10.0)], "1–3?"),
        ([cell(1, 90.0, Status.DOUBTFUL)], "?"),
        ([cell(1, 90.0), cell(2, None, Status.OVER_CAPACITY)], "≥1"),
        ([cell(1, None, Status.NOT_RUN), cell(2, None, Status.FAILED)], "—"),
    ],
)
def test_short_answers(cells: list[Cell], text: str) -> None:
    assert answer(*cells).text == text


def test_queued_requests_do_not_count_as_being_at_once() -> None:
    found = answer(cell(1, 90.0), cell(2, 50.0), cell(64, 40.0, Status.REQUESTS_QUEUED, active=9.2))
    assert (found.text, found.met, found.queued, found.queued_running) == ("≥2", 2, 64, 9.2)
    assert "beyond it requests queue at 8K × 64 (9.2 ran)" in capacity.notes([found])


def test_a_queue_that_misses_is_a_miss_of_those_that_ran() -> None:
    found = answer(cell(1, 90.0), cell(64, 12.0, Status.REQUESTS_QUEUED, active=8.0))
    assert (found.text, found.missed) == ("1–7", 8)


def test_what_stopped_the_count() -> None:
    found = answer(cell(1, 90.0), cell(2, None, Status.OVER_CAPACITY), cell(4, None, Status.NOT_RUN))
    assert found.stopped_by == Status.OVER_CAPACITY
    assert answer(cell(1, None, Status.FAILED), cell(2, 50.0)).stopped_by is None


def test_no_decode_no_answer() -> None:
    assert capacity.capacities(records.record([records.prefill("8K", K8, 100.0, 80.0)])) == []


def test_seed_page() -> None:
    found = {a.context: a.text for a in capacity.capacities(records.seed_page())}
    assert found == {"8K": "≥16", "16K": "≥4?", "32K": "≥8?", "64K": "≥16", "128K": "≥8", "251K": "≥4"}


STATUSES = st.sampled_from([str(s) for s in Status])


@given(st.dictionaries(st.integers(1, 256), st.tuples(st.floats(0.1, 500.0), STATUSES), min_size=1, max_size=9))
def test_never_more_than_a_sound_cell_shows(row: dict[int, tuple[float, str]]) -> None:
    cells = [cell(n, each, status, active=float(n)) for n, (each, status) in row.items()]
    found = answer(*cells)
    if found.met is not None:
        each, status = row[found.met]
        assert status == Status.VALID and each >= 20.0 and found.met_tok_s == each
    if found.missed is not None:
        assert found.met is None or found.met < found.missed
        assert found.missed_tok_s is not None and found.missed_tok_s < 20.0
    sound = (Status.VALID, Status.REQUESTS_QUEUED)
    misses = [n for n, (each, status) in row.items() if status in sound and each < 20.0]
    assert (found.missed is None) == (not misses)
    assert not misses or found.met is None or found.met < min(misses)
