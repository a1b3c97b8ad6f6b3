"""Level shifts in a configuration's history: what is found, what is not, and what is said of it."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.site import boards, history
from flatout.site.database import Database
from flatout.site.history import LEAST_RUNS, Dated, change_points
from tests import site_database, site_records

database = site_database.database


def series(
    rng: random.Random, n: int, sd: float, within: float, steps: tuple[tuple[int, float], ...] = (), df: int = 0
) -> list[Dated]:
    """Runs around 100 tok/s: `sd` from run to run (log scale; Student's t of `df` for heavy tails), each known to
    ±`within` (95 %), with a step of the level from each (index, log change) on."""
    made = []
    for i in range(n):
        level = sum(change for at, change in steps if i >= at)
        noise = rng.gauss(0, 1)
        if df:
            noise /= math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(df)) / df)
        value = 100 * math.exp(level + sd * noise + within / 1.96 * rng.gauss(0, 1))
        made.append(Dated(i, value, value * (1 - within), value * (1 + within), f"run{i}"))
    return made


@pytest.mark.parametrize("n", [5, 12, 30, 60])
def test_a_level_that_never_shifts_is_left_alone(n: int, capsys: pytest.CaptureFixture[str]) -> None:
    """At most 1 % of such series have an alarm: 600 of them, so up to 13 pass for that (3 standard errors)."""
    rng = random.Random(n)
    for sd, within in ((0.01, 0.004), (0.0, 0.01)):
        alarms = sum(bool(change_points(series(rng, n, sd, within))) for _ in range(600))
        with capsys.disabled():
            print(
                f"\n{n} runs, {sd:.1%} from run to run, ±{within:.1%} within: {alarms / 600:.2%} false alarms", end=""
            )
        assert alarms <= 13
    # three times as often where one run in many is far off
    heavy = sum(bool(change_points(series(rng, n, 0.01, 0.004, df=5))) for _ in range(600))
    assert heavy <= 30


@pytest.mark.parametrize(
    ("n", "sd", "at", "power"), [(12, 0.005, 6, 0.95), (30, 0.01, 15, 0.95), (30, 0.005, 28, 0.9), (60, 0.01, 50, 0.95)]
)
def test_a_step_of_three_per_cent_is_found(
    n: int, sd: float, at: int, power: float, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(n)
    found = placed = 0
    for _ in range(200):
        some = change_points(series(rng, n, sd, 0.004, ((at, -0.03),)))
        found += bool(some)
        placed += any(abs(shift.index - at) <= 1 for shift in some)
    with capsys.disabled():
        print(
            f"\n3 % at run {at} of {n}, {sd:.1%} from run to run: found in {found / 200:.0%}, ±1 {placed / 200:.0%}",
            end="",
        )
    assert found / 200 >= power and placed / 200 >= power - 0.08


def test_a_fall_that_was_mended_is_two_shifts() -> None:
    rng = random.Random(3)
    some = [change_points(series(rng, 30, 0.006, 0.004, ((10, -0.03), (20, 0.03)))) for _ in range(60)]
    good = sum(len(s) == 2 and s[0].change.value < 1 < s[1].change.value for s in some)
    assert good / 60 > 0.85


def test_a_shift_says_levels_interval_and_versions() -> None:
    rng = random.Random(1)
    runs = series(rng, 20, 0.002, 0.003, ((12, 0.08),))
    dated = [
        Dated(d.at_us, d.value, d.low, d.high, d.public_id, "1.0" if i < 12 else "1.1", "0.1.0" if i < 15 else "0.2.0")
        for i, d in enumerate(runs)
    ]
    (shift,) = change_points(dated)
    assert (shift.index, shift.at_us, shift.sure, shift.before.runs, shift.after.runs) == (12, 12, True, 12, 8)
    assert shift.engine_version == ("1.0", "1.1") and shift.flatout is None
    assert shift.change.low is not None and shift.change.high is not None
    assert shift.change.low < math.exp(0.08) < shift.change.high
    assert shift.before.value == pytest.approx(100, rel=0.01) and shift.after.value == pytest.approx(108.3, rel=0.01)
    words = history.shift_words(shift)
    assert words.startswith("8.") and "faster (95 % interval +" in words and "engine 1.0 → 1.1" in words


def test_the_newest_run_alone_is_not_sure() -> None:
    rng = random.Random(1)
    (shift,) = change_points(series(rng, 15, 0.002, 0.003, ((14, -0.2),)))
    assert shift.index == 14 and not shift.sure
    assert "only the newest run" in history.shift_words(shift)


def test_one_run_off_in_the_middle_is_no_shift() -> None:
    rng = random.Random(1)
    runs = series(rng, 20, 0.003, 0.003)
    bad = runs[10]
    runs[10] = Dated(bad.at_us, bad.value * 0.8, bad.value * 0.79, bad.value * 0.81, bad.public_id)
    assert change_points(runs) == []


def test_runs_within_their_own_intervals_do_not_shift() -> None:
    """Equal among themselves by luck on each side, but each known to ±5 % only."""
    runs = [Dated(i, v, v * 0.95, v * 1.05, f"{i}") for i, v in enumerate([100.0] * 3 + [103.0] * 3)]
    assert change_points(runs) == []
    sharp = [Dated(i, v, v * 0.999, v * 1.001, f"{i}") for i, v in enumerate([100.0, 100.1] * 8 + [103.0, 103.1] * 8)]
    assert [s.index for s in change_points(sharp)] == [16]


def test_a_series_goes_forward() -> None:
    with pytest.raises(ValueError, match="oldest"):
        change_points([Dated(2, 1.0, None, None, "a"), Dated(1, 1.0, None, None, "b")])


values = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(1e-3, 1e6))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(values, st.none() | st.floats(0, 2)), max_size=40))
def test_any_series_is_read(some: list[tuple[float, float | None]]) -> None:
    runs = [
        Dated(i, v, None if s is None else v * (1 - s), None if s is None else v * (1 + s), str(i))
        for i, (v, s) in enumerate(some)
    ]
    found = change_points(runs)
    assert [s.index for s in found] == sorted({s.index for s in found})
    assert all(0 < s.index < len(runs) and s.change.value > 0 for s in found)
    if len(runs) < LEAST_RUNS:
        assert found == []
    for shift in found:
        assert history.shift_words(shift)


def test_a_configuration_over_time(database: Database, tmp_path: Path) -> None:
    store = site_records.store(database, tmp_path)
    rng = random.Random(2)
    ids = []
    for i in range(12):
        taken = site_records.taken(
            store.settings, i, started=site_records.BEGIN + timedelta(days=i), version="0.9" if i < 6 else "0.10",
            speed=math.exp(rng.gauss(0, 0.002)) * (1 if i < 6 else 0.9),
        )  # fmt: skip
        ids.append(store.publish(taken, account_id=None, who="local").public_id)
    other = store.publish(site_records.taken(store.settings, 50, gpu="B200"), account_id=None, who="local").public_id
    store.withdraw(ids[3], who="operator", account_id=None, reason="throttled", moderator=True)
    with database.read() as conn:
        rows = boards.top(conn, "single:8192")
        key = next(r.history_key for r in rows if r.public_id in ids)
        assert len({r.repro_key for r in rows if r.history_key == key}) == 2, "two versions are two configurations"
        found = history.history(conn, key)
        assert history.history(conn, "none") is None
    assert found is not None
    assert (found.runs, found.versions, found.launch_known) == (11, ["0.10", "0.9"], True)
    kinds = {s.board.kind for s in found.series}
    assert kinds == {"single", "total", "prefill"} and len(found.series) == 3 + 6 + 3
    for each in found.series:
        assert [d.public_id for d in each.runs] == [public for i, public in enumerate(ids) if i != 3]
        assert other not in [d.public_id for d in each.runs]
        (shift,) = each.shifts
        assert shift.index == 5 and shift.engine_version == ("0.9", "0.10") and shift.sure
        assert shift.change.value == pytest.approx(0.9, rel=0.01)
