"""A reader that stood still: how it is noted, cut to the window, and told; against the rig, frozen and not."""

from __future__ import annotations

import itertools
import os
import signal
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.calibrate.bench import Scene, job_for
from flatout.flags import Flag, Status
from flatout.load.job import SelfCheck
from flatout.load.process import LoadPool
from flatout.load.watch import AFTER_NS, KEPT, Pauses
from flatout.measure.checks import in_window, self_check
from flatout.measure.verdict import client_limits
from flatout.rig import RigConfig, running
from tests.test_measure_verdict import CLEAN_CHECK, only

MS = 1_000_000
LENGTHS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), max_size=200)


def made(spans: list[tuple[int, int]]) -> Pauses:
    """Pauses one after the other: (time before it, its length)."""
    pauses, t = Pauses(), 0
    for before, length in spans:
        pauses.add(t + before, t + before + length)
        t += before + length
    return pauses


@given(LENGTHS)
def test_the_longest_are_kept_and_all_are_counted(spans: list[tuple[int, int]]) -> None:
    pauses = made(spans)
    lengths = [p.end_ns - p.begin_ns for p in pauses.kept]
    assert (pauses.count, pauses.total_ns) == (len(spans), sum(length for _, length in spans))
    assert sorted(lengths, reverse=True) == sorted((n for _, n in spans), reverse=True)[:KEPT]
    assert pauses.kept == sorted(pauses.kept)


def test_merged_events_belong_to_the_pause_in_which_they_waited() -> None:
    pauses = Pauses()
    pauses.add(100 * MS, 150 * MS)
    pauses.add(400 * MS, 410 * MS)
    stamps = np.array([90 * MS, 100 * MS, 149 * MS, 150 * MS + AFTER_NS, 151 * MS + AFTER_NS, 405 * MS])
    pauses.note_merged(stamps, np.array([1, 2, 4, 8, 16, 32]))
    assert [p.merged for p in pauses.kept] == [14, 32]


def check_of(spans: list[tuple[int, int]], merged: int = 1, **changes: object) -> SelfCheck:
    pauses = made(spans)
    return msgspec.structs.replace(
        CLEAN_CHECK, pauses=pauses.count, pauses_total_ns=pauses.total_ns,
        pause_t_ns=tuple(p.begin_ns for p in pauses.kept), pause_ns=tuple(p.end_ns - p.begin_ns for p in pauses.kept),
        pause_merged=(merged,) * len(pauses.kept), **changes,
    )  # fmt: skip


@given(LENGTHS, st.integers(0, 10**8), st.integers(1, 10**8))
def test_a_window_keeps_what_touches_it(spans: list[tuple[int, int]], t0: int, length: int) -> None:
    whole = check_of(spans)
    (cut,) = in_window([whole], t0, t0 + length)
    listed = list(zip(whole.pause_t_ns, whole.pause_ns, strict=True))
    inside = [(t, n) for t, n in listed if t < t0 + length and t + n > t0]
    assert list(zip(cut.pause_t_ns, cut.pause_ns, strict=True)) == inside
    assert cut.pauses - len(inside) == whole.pauses - len(listed)
    assert cut.pauses_total_ns - sum(cut.pause_ns) == whole.pauses_total_ns - sum(whole.pause_ns)
    assert cut.watched_s == length / 1e9


def test_a_window_keeps_its_lags() -> None:
    check = msgspec.structs.replace(CLEAN_CHECK, lag_t_ns=(0, 100 * MS, 900 * MS, 1000 * MS), lag_max_ns=(1, 2, 3, 4))
    (cut,) = in_window([check], 150 * MS, 1000 * MS)
    assert (cut.lag_t_ns, cut.lag_max_ns) == ((100 * MS, 900 * MS), (2, 3))


@pytest.mark.parametrize(
    ("spans", "changes", "said"),
    [
        ([(0, 300 * MS)], {}, "stood still 1 times, for 300 ms of 10.0 s (300 ms at the longest), and 1 events took"),
        ([(0, 50 * MS)], {"watched_s": 1000.0}, "50 ms at the longest"),
        ([(5, 8 * MS)] * 3, {}, "stood still 3 times, for 24 ms"),
        ([(5, 8 * MS)] * 2, {}, None),  # 0.16 % of the time
        ([(0, 300 * MS)], {"pause_merged": (0,)}, None),  # nobody's events waited together: no stamp is wrong
        ([(0, 300 * MS)], {"pause_merged": (0,), "clock": "user"}, "stamped late"),
        ([(5, 6 * MS)] * 200, {"pause_merged": (0,) * KEPT}, "stood still 136 times"),  # too many to tell apart
    ],
)
def test_a_pause_counts_by_its_share_of_the_time_and_its_length(
    spans: list[tuple[int, int]], changes: dict[str, object], said: str | None
) -> None:
    check = msgspec.structs.replace(check_of(spans), **changes)
    found = client_limits(check)
    assert found == [] if said is None else len(found) == 1 and said in found[0] and "--load-cores" in found[0]


def test_the_record_tells_of_pauses() -> None:
    told = self_check([check_of([(0, 300 * MS), (1, 7 * MS)]), CLEAN_CHECK])
    assert told is not None
    assert (told.pauses, told.pauses_total_ms, told.pause_longest_ms, told.pause_merged_events) == (2, 307.0, 300.0, 2)
    none = self_check([CLEAN_CHECK])
    assert none is not None and (none.pauses, none.pause_longest_ms) == (0, None)


def test_a_frozen_reader_is_told_and_one_that_reads_says_nothing() -> None:
    """Two windows of one load; in the second the process stands still, as if others had its core."""
    frozen_s, scene = 0.3, Scene("8 × 20", "scale", 8, 20.0, answers_s=100.0)
    with running(RigConfig(dialect="vllm", decode_tok_s=20.0)) as rig, LoadPool() as pool:
        pool.start(job_for(scene, rig.url, "f"))
        pool.wait(10, until=lambda s: s.started == 8)
        time.sleep(0.2)
        edges = [time.monotonic_ns()]
        time.sleep(1.0)
        edges.append(time.monotonic_ns())
        time.sleep(0.3)
        os.kill(pool.pids[0], signal.SIGSTOP)
        time.sleep(frozen_s)
        os.kill(pool.pids[0], signal.SIGCONT)
        time.sleep(1.0)
        edges.append(time.monotonic_ns())
        outcome = pool.stop()
    quiet, frozen = (in_window(outcome.checks, *window) for window in itertools.pairwise(edges))
    assert [text for check in quiet for text in client_limits(check)] == []
    assert any("stood still" in text for check in frozen for text in client_limits(check))
    assert max(frozen[0].pause_ns) > 0.25e9
    if frozen[0].clock == "kernel":  # a token each 50 ms on 8 streams: five or more of each waited together
        assert sum(frozen[0].pause_merged) >= 8 * (frozen_s / 0.05 - 2)
    only(Flag.CLIENT_LIMITED, Status.DOUBTFUL, "stood still", self_checks=frozen)
