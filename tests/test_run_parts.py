"""Parts of the conductor that can be looked at alone."""

from __future__ import annotations

import inspect
import json
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout import __version__
from flatout import record as rec
from flatout.cli.run import run
from flatout.engines.base import MAX_TOKENS, Live
from flatout.load.job import RID_WIDTH, Timeouts
from flatout.protocol import Shape
from flatout.run import idle, requests, warmup
from flatout.run.begin import missing
from flatout.run.decode import look_times_s
from flatout.run.events import Control
from flatout.run.idle import interval_s
from flatout.run.options import Options
from flatout.run.session import Session, Stopped
from flatout.run.store import new_directory, write_beside
from tests.rigged import Run, measure, rig, suite


@given(st.integers(1, 300), st.integers(2, 5000), st.integers(0, 99))
def test_l3_first_lengths_are_spread_evenly(streams: int, most: int, seed: int) -> None:
    lengths = requests.first_lengths(streams, most, seed)
    assert sorted(lengths) == sorted(max(1, round(i * most / streams)) for i in range(1, streams + 1))
    assert max(lengths) == most and min(lengths) >= 1
    if streams == 1:
        assert lengths == [most]


def test_bodies_of_a_stream_differ_in_the_length_only_and_have_room_for_an_id() -> None:
    shape = Shape("completions", "m", (("min_tokens", MAX_TOKENS),), id_field="rid")
    made = requests.stream(shape, "a text with @ signs @@@@", 64, 8)
    body, first = json.loads(made.body), json.loads(made.first_body or b"")
    assert body.pop("max_tokens") == 64 == body.pop("min_tokens")
    assert first.pop("max_tokens") == 8 == first.pop("min_tokens")
    assert body == first and body["prompt"] == "a text with @ signs @@@@"
    for data, at in ((made.body, made.rid_offset), (made.first_body, made.first_rid_offset)):
        assert data is not None and data[at : at + RID_WIDTH] == b"@" * RID_WIDTH
        assert data[at - 1 : at] == b'"' == data[at + RID_WIDTH : at + RID_WIDTH + 1]


def test_looks_are_fixed_before_the_window_opens() -> None:
    assert look_times_s(suite(time_s=3.0)) == [3.0]
    times = look_times_s(suite(time_s=20.0, min_time_s=5.0, precision=0.01))
    assert times[0] == 5.0 and times[-1] == 20.0 and times == sorted(times) and len(times) == 4
    assert interval_s(3.0) == 0.1 and interval_s(20.0) == 0.5 and interval_s(600.0) == 1.0


def test_l7_the_warm_up_goes_on_until_the_speed_repeats() -> None:
    assert not warmup.repeats([]) and not warmup.repeats([100.0]) and not warmup.repeats([40.0, 100.0])
    assert warmup.repeats([40.0, 100.0, 102.0]) and not warmup.repeats([100.0, None])


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with rig({"dialect": "vllm", "decode_tok_s": 300}) as server:
        return measure(server, tmp_path_factory.mktemp("warmed"), suite=suite(concurrency=(1, 2)), warmup=True)


def test_l7_c3_the_warm_up_is_in_the_record(warmed: Run) -> None:
    assert [w.repeats for w in warmed.record.warmups][:2] == [True, True]
    assert all(len(w.speeds) >= 2 for w in warmed.record.warmups[:2])


def test_c3_the_warm_up_has_prompts_of_its_own(warmed: Run) -> None:
    hashes = warmed.record.prompts.hashes
    warm = {h for key, h in hashes.items() if key.startswith("w/")}
    measured = {h for key, h in hashes.items() if key.startswith(("c/", "x/"))}
    assert warm and measured and not warm & measured


def test_u6_every_limit_can_be_set() -> None:
    names = set(inspect.signature(run).parameters)
    assert {"connect_timeout", "first_token_timeout", "idle_timeout", "total_timeout", "steady_timeout"} <= names
    assert {"drain_timeout", "ready_timeout"} <= names
    assert Timeouts().first_byte_s >= 600, "a long prefill is silent for minutes"


def test_u8_the_record_names_engine_tool_and_time_zone(warmed: Run) -> None:
    record = warmed.record
    assert record.engine.version.value and record.engine.version.source == "server"
    assert record.client.flatout == __version__ and record.client.stamp_clock in ("kernel", "user")
    window = record.cells[0].window
    assert window is not None
    for moment in (record.started, record.finished, record.cells[0].started, window.opened):
        assert moment is not None and datetime.fromisoformat(moment).utcoffset() is not None
    assert rec.read(warmed.directory) == record


def test_a_directory_is_never_given_twice(tmp_path: Path) -> None:
    made = {new_directory(tmp_path, "org/We ird: model", "vllm") for _ in range(5)}
    assert len(made) == 5 and all(p.parent == tmp_path and " " not in p.name for p in made)
    assert new_directory(tmp_path, "../../etc/passwd", "/").parent == tmp_path


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_beside(path, b"one")
    with pytest.raises(TypeError):
        write_beside(path, "two")  # type: ignore[arg-type]
    assert path.read_bytes() == b"one" and [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_the_fingerprint_changes_with_what_shapes_a_measurement_and_nothing_else() -> None:
    one = Options(url="http://a", suite=suite())
    assert one.fingerprint() == replace(one, url="http://b", key="k", results=Path("x"), note="n").fingerprint()
    for change in ({"suite": suite(max_output=65)}, {"temperature": 0.5}, {"extra_body": '{"a": 1}'}, {"requests": 3}):
        assert one.fingerprint() != replace(one, **change).fingerprint()


def cell(status: str, reason: str | None, finished: str | None) -> rec.Cell:
    return rec.Cell(
        id="d/1/1", phase="decode", context="1", context_tokens=1, concurrency=1, max_output=1, need_tokens=2,
        status=status, reason=reason, finished=finished,
    )  # fmt: skip


def test_what_a_resumed_run_measures() -> None:
    assert missing(cell("not_run", "not reached yet", None)) and missing(cell("failed", "x", "t"))
    assert missing(cell("no_steady_state", "x", "t")) and missing(cell("not_run", "skipped by the user", "t"))
    assert not missing(cell("valid", None, "t")) and not missing(cell("over_capacity", "x", "t"))
    assert not missing(cell("not_run", "above the limit of 4 simultaneous requests given for this run", "t"))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"[]", "no 'format'"), (b'{"format": "flatout-record/9"}', "update"),
        (b'{"format": "flatout-record/1"}', "damaged"), (b"\xff\xfe", "not JSON"), (b"[" * 100_000, "not JSON"),
        (b'{"format": "flatout-record/1", "per_user_tok_s": NaN}', "NaN"), (b'{"format": 1}', "no 'format'"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_said_in_a_sentence(data: bytes, told: str) -> None:
    with pytest.raises(rec.RecordError, match=told):
        rec.parse(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_sentence(data: bytes) -> None:
    with pytest.raises(rec.RecordError):
        rec.parse(data)


@pytest.mark.parametrize("asked", ["skip", "stop"])
def test_waiting_for_an_idle_server_ends_when_the_user_says_so(asked: str) -> None:
    """At once, not at the end of the drain's time; after a cell it takes nothing from what was measured."""
    control, adapter = Control(), SimpleNamespace(live=lambda: Live(t_ns=1, running=3.0, waiting=0.0))
    session = SimpleNamespace(
        control=control, gauges=True, options=SimpleNamespace(drain=True, drain_s=60.0),
        target=SimpleNamespace(adapter=adapter), doing=lambda *_: None,
    )  # fmt: skip
    session.check = partial(Session.check, session)  # type: ignore[arg-type]
    for wait, ends in ((idle.ensure_idle, pytest.raises(Stopped)), (idle.idle_after, nullcontext())):
        control.skip() if asked == "skip" else control.stop("by hand")
        begun = time.monotonic()
        with ends as told:
            wait(session, None)  # type: ignore[arg-type, operator]
        assert time.monotonic() - begun < 30
        assert told is None or told.value.skip == (asked == "skip")
