"""Calibration: truth beside reading, on made-up logs, against the real senders, and as a document."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout import calibration as store
from flatout.calibrate import bench, compare, conduct
from flatout.calibrate.bench import Scene
from flatout.calibration import Calibration, MachineKey, Pair, Point, beyond
from flatout.load.process import LoadPool
from flatout.load.samples import Samples, from_rows
from flatout.rig import RigConfig, RigHandle, Truth, running
from flatout.rig.truth import BLOCKED, SENT, Log, Record
from flatout.show import calibration as show
from flatout.show import document

MS = 1_000_000
SMALL = Scene("4 × 50", "scale", 4, 50.0, lean=True, answers_s=0.4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def truth_of(events: list[tuple[int, int, int, int]], requests: int = 1) -> Truth:
    """A log of (t_ns, request, tokens, flags), requests called r0, r1, …"""
    log = Log()
    for i in range(requests):
        record = Record(rid=f"r{i}", arrival_ns=0)
        own = [t for t, request, _, _ in events if request == i]
        record.first_ns, record.last_ns = (own[0], own[-1]) if own else (-1, -1)
        log.open(record)
    for t_ns, request, tokens, flags in events:
        log.event(t_ns, request, tokens, 0, flags)
    return Truth.from_npz(log.to_npz("{}", 0))


def samples_of(*requests: list[int]) -> Samples:
    """Samples of requests r0, r1, … with one-token arrivals at these times."""
    rows, arrivals = [], []
    for number, times in enumerate(requests):
        first = times[0] if times else -1
        rows.append(
            (number, 0, 0, -1, first, first, first, times[-1] if times else -1, times[-1] if times else -1, 200, 0, 0,
             len(times), 1, 0, len(times), -1, 5 * len(times), 1, -1, len(arrivals), len(times))
        )  # fmt: skip
        arrivals += [(t, i + 1, -1, 5, 1) for i, t in enumerate(times)]
    made = from_rows(rows, arrivals, finish_names=["length"])
    made.request_ids = [f"r{i}" for i in range(len(requests))]
    return made


def point(**changes: object) -> Point:
    made: dict[str, object] = {
        "name": "64 × 150, in step", "kind": "scale", "sender": "rig", "streams": 64, "stream_tok_s": 150.0,
        "tokens_per_event": 1, "pattern": "step", "window_s": 2.0, "asked_events_s": 9600.0, "sent_events_s": 9590.0,
        "total_tok_s": Pair(truth=9590.0, reading=9591.0), "ttft_p50_ms": Pair(truth=20.0, reading=20.02),
        "itl_p50_ms": Pair(truth=6.67, reading=6.67), "itl_p99_ms": Pair(truth=8.0, reading=None),
        "longest_gap_ms": Pair(), "events_matched": 19000, "stamp_p50_us": 2.9, "stamp_p99_us": 9.0,
        "merged_share": 0.0, "cpu_us_per_event": 11.0, "cpu_share": 0.1, "lag_p99_us": 300.0, "late_reads": 0,
        "reads": 19000, "sender_late_p99_us": 90.0, "blocked": 0, "token_source": "running counts", "trusted": True,
    }  # fmt: skip
    return Point.model_validate(made | changes)


def calibration(**changes: object) -> Calibration:
    made: dict[str, object] = {
        "id": "0123abcd", "version": store.__version__, "machine": store.machine_key(),
        "made": "2026-11-30T03:45:00+00:00", "took_s": 61.0, "quick": False, "rig_cores": [0], "load_cores": [1],
        "clock": "kernel", "clock_reason": None, "load_average": [0.4, 0.3, 0.2], "points": [point()],
        "cpu_us_per_event": 11.0, "max_events_s": 60_000.0, "events_limit": "client", "max_streams": 1024,
        "streams_limit": "client", "notes": [],
    }  # fmt: skip
    return Calibration.model_validate(made | changes)


# -- truth beside reading


def test_each_arrival_stands_beside_its_own_event() -> None:
    sent = [(i * 10 * MS, i % 2, 1, SENT) for i in range(20)]
    reads = [[t + 3_000 for t, r, _, _ in sent if r == request] for request in (0, 1)]
    found = compare.stamps(samples_of(*reads), truth_of(sent, 2), 0, 10**12)
    assert found.error_us.tolist() == [3.0] * 20 and not found.merged.any()
    inside = compare.stamps(samples_of(*reads), truth_of(sent, 2), 50 * MS, 100 * MS)
    assert len(inside.error_us) == 5


def test_events_read_together_are_told_from_late_stamps() -> None:
    """Two events of one read share the later one's stamp; two of one send never differed."""
    apart = truth_of([(10 * MS, 0, 1, SENT), (20 * MS, 0, 1, SENT), (30 * MS, 0, 1, SENT)])
    found = compare.stamps(samples_of([20 * MS, 20 * MS, 30 * MS]), apart, 0, 10**12)
    assert found.merged.tolist() == [True, False, False] and found.error_us.tolist() == [10_000.0, 0.0, 0.0]
    one_send = truth_of([(10 * MS, 0, 1, SENT), (10 * MS, 0, 1, SENT)])
    assert not compare.stamps(samples_of([10 * MS, 10 * MS]), one_send, 0, 10**12).merged.any()


def test_events_that_found_the_socket_full_have_no_stamp_error() -> None:
    log = truth_of([(10 * MS, 0, 1, SENT), (20 * MS, 0, 1, SENT | BLOCKED)])
    assert len(compare.stamps(samples_of([10 * MS, 90 * MS]), log, 0, 10**12).error_us) == 1


def test_unknown_requests_are_left_out() -> None:
    found = compare.stamps(samples_of([1, 2], [3]), truth_of([(1, 0, 1, SENT), (2, 0, 1, SENT)]), 0, 10)
    assert found.error_us.tolist() == [0.0, 0.0]


@given(st.floats(-0.05, 0.05), st.floats(-2.0, 2.0), st.floats(-0.5, 0.5), st.floats(0.0, 1.0), st.integers(0, 3))
def test_a_point_is_trusted_exactly_within_the_limits(
    rate: float, ttft_ms: float, itl: float, sent: float, blocked: int
) -> None:
    found = compare.judge(
        Pair(truth=1000.0, reading=1000.0 * (1 + rate)),
        Pair(truth=20.0, reading=20.0 + ttft_ms),
        Pair(truth=5.0, reading=5.0 + itl),
        [],
        asked_events_s=1000.0,
        sent_events_s=1000.0 * sent,
        blocked=blocked,
        merged_share=0.0,
        estimated=False,
    )
    within = abs(rate) < 0.00199 and abs(ttft_ms) < 0.499 and abs(itl) < 0.0499 and not blocked
    beyond_all = abs(rate) > 0.00201 or abs(ttft_ms) > 0.501 or abs(itl) > 0.0501 or blocked
    if within:
        assert found.trusted and found.held_by == ("rig" if sent < compare.SENT_SHARE else None)
    if beyond_all:
        assert not found.trusted and found.held_by == "client" and found.reason


def test_a_missing_rate_is_never_trusted() -> None:
    none = Pair()
    found = compare.judge(
        none, none, none, [], asked_events_s=1, sent_events_s=1, blocked=0, merged_share=0, estimated=False
    )
    assert not found.trusted and found.reason == "no rate was read"


# -- the senders


def ask(url: str, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_lean_sender_speaks_the_protocol() -> None:
    with running(RigConfig(decode_tok_s=500.0, ttft_ms=5.0), cores={0}, lean=True) as rig:
        assert json.loads(ask(rig.url, "GET", "/v1/models")[1])["data"][0]["id"] == "rig-model"
        assert ask(rig.url, "GET", "/nothing")[0] == 404
        assert ask(rig.url, "POST", "/v1/chat/completions", {"max_tokens": 3})[0] == 400
        asked = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 3}
        status, data = ask(rig.url, "POST", "/v1/chat/completions", asked)
        assert status == 200 and json.loads(data)["usage"]["completion_tokens"] == 3
        _, streamed = ask(rig.url, "POST", "/v1/chat/completions", asked | {"stream": True, "request_id": "mine"})
        events = [line[6:] for line in streamed.split(b"\n") if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]"
        counts = [json.loads(e)["usage"]["completion_tokens"] for e in events[:-1]]
        assert counts == [1, 2, 3, 3, 3] and json.loads(events[3])["choices"][0]["finish_reason"] == "length"
        log = rig.log()
        assert log.rid == ["", "mine"] and log.sent_tokens.tolist()[1] == 3 and log.reason[1] == "finished"
        assert rig.control(decode_tok_s=250.0).decode_tok_s == 250.0
        rig.reset()
        assert rig.log().rid == []


@pytest.mark.parametrize("pattern", ["step", "spread"])
def test_the_lean_sender_keeps_its_schedule_through_joins_and_leaves(pattern: str) -> None:
    """Every request gets each of its tokens once and in order, and neighbours are a period apart, by its own log."""
    config = RigConfig(decode_tok_s=100.0, ttft_ms=5.0, pattern=pattern)  # type: ignore[arg-type]
    with running(config, cores={0}, lean=True) as rig, LoadPool(1) as pool:
        scene = Scene("8", "scale", 8, 100.0, lean=True, answers_s=0.3)
        pool.start(bench.job_for(scene, rig.url, "t"))
        pool.wait(10.0, until=lambda s: s.finished >= 16)
        outcome = pool.stop()
        log = rig.log()
    assert (outcome.samples.outcome == 0).sum() >= 16
    ended = np.flatnonzero([reason == "finished" for reason in log.reason])
    for request in ended:
        mine = log.event_ns[log.event_request == request] - log.event_late_us[log.event_request == request] * 1000
        assert log.sent_tokens[request] == log.max_tokens[request] == len(mine)
        gaps = np.diff(mine)[1:] / 1e6  # the first gap joins the step's beat
        assert np.all(np.abs(gaps - 10.0) < 0.05)


def test_a_point_agrees_with_the_log() -> None:
    with running(RigConfig(dialect="vllm"), cores={0}) as rig, LoadPool(1) as pool:
        found = bench.measure(Scene("4 × 50", "scale", 4, 50.0, answers_s=0.4), rig, pool, 1.0)
    assert found.events_matched > 100 and found.token_source == "running counts"
    assert found.total_tok_s.relative == pytest.approx(0.0, abs=0.02)
    assert found.ttft_p50_ms.truth and found.ttft_p50_ms.truth >= 20.0
    assert found.itl_p50_ms.truth == pytest.approx(20.0, rel=0.1) and found.cpu_us_per_event


def test_several_tokens_an_event_are_read_as_tokens() -> None:
    with running(RigConfig(), cores={0}, lean=True) as rig, LoadPool(1) as pool:
        scene = Scene("8 tokens", "shape", 4, 200.0, tokens_per_event=8, lean=True, answers_s=1.0)
        found = bench.measure(scene, rig, pool, 1.0)
    assert found.total_tok_s.relative == pytest.approx(0.0, abs=0.05)
    assert found.total_tok_s.truth and found.total_tok_s.truth > 4 * found.sent_events_s


@contextmanager
def frozen(pid: int, after_s: float, for_s: float) -> Iterator[None]:
    """The process stands still for a while inside the with block."""
    timers = [
        threading.Timer(after_s, os.kill, (pid, signal.SIGSTOP)),
        threading.Timer(after_s + for_s, os.kill, (pid, signal.SIGCONT)),
    ]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.join()


def test_a_client_that_does_not_read_is_told_from_a_rig_that_does_not_send() -> None:
    scene = Scene("8 × 100", "scale", 8, 100.0, lean=True, answers_s=30.0)
    with running(RigConfig(), cores={0}, lean=True) as rig, LoadPool(1) as pool:
        for _ in range(2):  # once more where the whole machine stood still, and the rig with it
            with frozen(pool.pids[0], 1.0, 1.5):
                slow_client = bench.measure(scene, rig, pool, 3.0)
            if (slow_client.sender_late_p99_us or 0.0) < 100_000:
                break
        with frozen(rig.pid, 1.0, 1.5):
            slow_rig = bench.measure(scene, rig, pool, 3.0)
    assert not slow_client.trusted and slow_client.held_by == "client"
    assert slow_client.sent_events_s > 0.9 * slow_client.asked_events_s and slow_client.merged_share > 0.1
    assert slow_rig.sender_late_p99_us and slow_rig.sender_late_p99_us > 1_000_000
    assert slow_rig.total_tok_s.relative == pytest.approx(0.0, abs=0.02)
    assert slow_rig.merged_share < 0.7  # what the rig caught up with, it sent back to back


# -- all of it


def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "known_speeds", lambda quick: (SMALL,))
    monkeypatch.setattr(conduct, "QUICK_WINDOW_S", 0.5)
    monkeypatch.setattr(conduct, "FIRST_EVENTS_S", 300.0)
    monkeypatch.setattr(conduct, "MOST_EVENTS_S", 450.0)
    monkeypatch.setattr(conduct, "STREAMS", (12,))
    monkeypatch.setattr(conduct, "STREAMS_EVENTS_S", 240.0)
    monkeypatch.setattr(conduct, "events_scene", lambda rate: bench.events_scene(rate, streams=8))


def test_a_calibration_is_made_kept_and_found_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    tiny(monkeypatch)
    assert store.load_latest() is None
    heard: list[conduct.Event] = []
    made = conduct.calibrate(heard.append, quick=True)
    assert {p.kind for p in made.points} >= {"scale", "events", "streams"}
    assert sum(isinstance(e, conduct.Measured) for e in heard) >= len(made.points)
    assert store.load_latest() == made
    kept = list((cache / "flatout").iterdir())
    assert len(kept) == 1 and store.__version__ in kept[0].name
    assert "4 × 50" in document.text(show.document(made))


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(monkeypatch)
    monkeypatch.setattr(conduct, "QUICK_BUDGET_S", 0.0)
    with pytest.raises(conduct.CalibrationError, match="no time was left"):
        conduct.calibrate(lambda event: None, quick=True, keep=False)


def test_cores_are_chosen_and_checked() -> None:
    usable = sorted(os.sched_getaffinity(0))
    rig, load = conduct.choose_cores(None, None)
    assert load == [usable[-1]] and (not set(rig) & set(load) or len(usable) == 1)
    assert conduct.choose_cores([usable[-1]], None)[1] == [usable[-2] if len(usable) > 1 else usable[0]]
    with pytest.raises(conduct.CalibrationError, match="core 9999 cannot be used"):
        conduct.choose_cores(None, [9999])


# -- the document


def test_a_damaged_or_foreign_file_is_no_calibration() -> None:
    path = store.save(calibration())
    assert store.load_latest() is not None
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing is left beside it
    path.write_text("{", encoding="utf-8")
    assert store.load_latest() is None
    path.write_bytes(b"\xff\xfe")
    assert store.load_latest() is None
    other = store.machine_key().model_copy(update={"cpu": "another"})
    assert store.path_for(other) != path and store.path_for(store.machine_key(), "0.0.0") != path


def test_a_failed_write_keeps_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.save(calibration())
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.save(calibration(id="ffffffff"))
    found = store.load_latest()
    assert found is not None and found.id == "0123abcd" and len(list(path.parent.iterdir())) == 1


@given(st.integers(1, 10**6), st.floats(0, 1e7), st.integers(1, 16))
def test_beyond_is_what_lies_over_the_limits(streams: int, events_s: float, processes: int) -> None:
    found = beyond(calibration(), streams, events_s, processes)
    over = streams > 1.05 * 1024 * processes or events_s > 1.05 * 60_000 * processes
    assert (found is not None) == over
    assert beyond(None, streams, events_s, processes) is None
    untried = calibration(events_limit="not reached", streams_limit="not reached")
    assert beyond(untried, streams, events_s, processes) is None


def test_beyond_says_what_and_how_much() -> None:
    assert beyond(calibration(), 2000, None) == (
        "2,000 streams are more than the 1,024 up to which this client was found to read rightly (flatout calibrate)"
    )
    by_rig = beyond(calibration(events_limit="rig"), 10, 90_000.0)
    assert by_rig and by_rig.startswith("90,000 events/s") and "was checked" in by_rig


def test_errors_are_signed_and_missing_ones_are_none() -> None:
    assert Pair(truth=200.0, reading=201.0).relative == pytest.approx(0.005)
    assert Pair(truth=None, reading=1.0).off is None and Pair(truth=1.0).relative is None
    assert Pair(truth=0.0, reading=1.0).relative is None


# -- shown


@pytest.mark.parametrize("width", [60, 100, 160])
def test_the_table_holds_truth_and_error_and_fits(width: int) -> None:
    made = calibration(points=[point(), point(name="a", attempts=2, trusted=False, held_by="client", reason="x")])
    text = document.text(show.document(made), width)
    assert max(map(len, text.splitlines())) <= width
    for part in ("+0.01 %", "+0.020 ms", "2.9 µs", "not right", "(2nd go)", "60,000 events/s", "1,024 streams"):
        assert part in text
    assert "20.0 / 20.0" in text and "8.00 / —" in text and "None" not in text


def test_markdown_is_a_table_in_which_nothing_acts() -> None:
    machine = MachineKey(cpu="<b>@x|y", cores=2, kernel="k", architecture="a", python="3")
    text = document.markdown(show.document(calibration(machine=machine, notes=["a|b <script>"])))
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert len(rows) == 3 and len({row.count("|") - row.count("\\|") for row in rows}) == 1
    assert "<script>" not in text and "<b>" not in text


def test_what_ended_the_search_is_said() -> None:
    assert "read wrongly" in " ".join(show.summary(calibration()))
    assert "could not send" in " ".join(show.summary(calibration(events_limit="rig")))
    assert "no more was tried" in " ".join(show.summary(calibration(streams_limit="not reached")))


def test_a_handle_of_the_lean_sender_is_a_rig_handle() -> None:
    with running(RigConfig(), lean=True) as rig:
        assert isinstance(rig, RigHandle) and rig.alive()
    assert not rig.alive()
