"""What the site says for and against a run: checks, where fields came from, and runs of the same configuration."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.flags import Flag as FlagName
from flatout.flags import Status
from flatout.record import Attempt, Cell, Flag, Record, SelfCheck, Tokens, parse
from flatout.site import audit, reproductions
from flatout.site.audit import Check
from flatout.site.database import Database
from tests import records, site_database, site_records
from tests.records import fact

database = site_database.database
K = 1024
RECEIVED_US = int(datetime(2026, 11, 30, 3, 5, tzinfo=UTC).timestamp()) * 1_000_000


def good(**more: Any) -> Record:
    """A run against which nothing speaks."""
    rng = random.Random(7)
    watch = SelfCheck(
        clock="kernel", reads=900, late_reads=0, late_limit_ms=1.0, merged_reads=3, unstamped_reads=0, lag_p50_ms=0.01,
        lag_p99_ms=0.05, lag_worst_ms=0.2, cpu_share=0.1, gc_pauses=0, gc_longest_ms=0.0, clock_steps=0,
    )  # fmt: skip
    cells: list[Cell] = []
    for i, n in enumerate((1, 4, 16)):
        each = 100.0 / (1 + 0.05 * n) * (1 + rng.random() / 1e3)
        tokens = each * n * 30.0
        cell = records.decode("8K", 8 * K, n, each * n, each_tok_s=each, ttft_ms=9 + rng.random(),
                              itl_ms=1000 / each, active=float(n),
                              completed=int(tokens / 512), output=tokens)  # fmt: skip
        assert cell.window is not None and cell.decode is not None
        cell.decode.ttft_ms.n, cell.decode.itl_ms.max = 12, 50.0
        cell.window.opened = f"2026-11-30T02:4{1 + i}:10.000+00:00"
        cell.started, cell.finished = f"2026-11-30T02:4{1 + i}:00.000+00:00", f"2026-11-30T02:4{1 + i}:45.000+00:00"
        cell.tokens = Tokens(source="running counts in events", in_window=tokens, own_total=tokens, server_total=tokens)
        cell.self_check = watch
        cell.max_output = 512
        cells.append(cell)
    made = records.record(cells, **more)
    made.client.calibration = "ab12 of 2026-11-29"
    return made


def by_name(found: list[Check], name: str) -> Check:
    return next(check for check in found if check.name == name)


def checked(record: Record) -> list[Check]:
    return audit.checks(record, received_us=RECEIVED_US)


def test_nothing_speaks_against_a_good_run() -> None:
    assert [check for check in checked(good()) if check.level != "good"] == []
    assert all(check.text for check in checked(good()))


def flagged(name: FlagName, status: str = Status.DOUBTFUL) -> Record:
    made = good()
    made.cells[1].flags = [Flag(name=name, detail="seen")]
    made.cells[1].status = status
    return made


@pytest.mark.parametrize(
    ("flag", "status", "name", "says"),
    [
        (FlagName.CONTAMINATED, Status.DOUBTFUL, "isolation", "8K × 4"),
        (FlagName.COUNTERS_DISAGREE, Status.DOUBTFUL, "token counts", "over 1 %"),
        (FlagName.LOOPING, Status.DOUBTFUL, "doubtful cells", "looping (1)"),
        (FlagName.CLIENT_LIMITED, Status.DOUBTFUL, "self-check", "too slow"),
        (FlagName.TOKENS_ESTIMATED, Status.VALID, "token counts", "estimates"),
    ],
)
def test_what_the_cells_say_of_themselves_is_noted(flag: FlagName, status: str, name: str, says: str) -> None:
    check = by_name(checked(flagged(flag, status)), name)
    assert check.level == "note" and says in check.text


def test_figures_that_contradict_each_other_are_a_doubt() -> None:
    made = good()
    assert made.cells[0].decode is not None
    made.cells[0].decode.output_tokens = 5 * (made.cells[0].decode.output_tokens or 0)
    grave = [check for check in checked(made) if check.name == "consistency" and check.level == "doubt"]
    assert grave and "8K × 1" in grave[0].text


def test_what_is_missing_is_noted() -> None:
    made = good()
    made.client.calibration = None
    made.cells[2].self_check = None
    made.prompts.exact = None
    for cell in made.cells:
        cell.tokens = None
    made.hardware.describes = "client only"
    made.engine.launch_command = fact(None)
    found = checked(made)
    for name in ("calibration", "self-check", "prompts", "token counts", "hardware", "identity"):
        assert by_name(found, name).level == "note", name
    assert "launch command" in by_name(found, "identity").text


def test_typed_facts_are_marked_and_every_field_says_its_origin() -> None:
    made = good()
    made.hardware.describes = "server, as typed"
    made.hardware.facts["gpu"] = fact("H200", source="typed")
    check = by_name(checked(made), "provenance")
    assert check.level == "note" and "hardware: gpu = H200" in check.text
    told = {one.field: one for one in audit.origins(made)}
    assert told["hardware: gpu"].source == "typed" and told["engine: version"].source == "server"
    missing = told["hardware: driver"]
    assert (missing.value, missing.source) == (None, None) and missing.reason == "nvidia-smi does not answer"


def test_redone_cells_are_told() -> None:
    made = good()
    made.cells[0].attempts = [Attempt(started="2026-11-30T02:41:00+00:00", reason="contaminated: 6 ran")]
    check = by_name(checked(made), "redone cells")
    assert check.level == "good" and "8K × 1" in check.text and "6 ran" in check.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"finished": "2026-11-30T02:00:00+00:00"}, "finished before it began"),
        ({"started": "2026-11-30T09:00:00+00:00", "finished": None}, "after the site had received it"),
        ({"started": "2026-11-30T02:42:00+00:00"}, "outside of the run"),
        ({"finished": "2026-11-30T02:42:00+00:00"}, "outside of the run"),
    ],
)
def test_times_that_contradict_each_other_are_a_doubt(change: dict[str, Any], says: str) -> None:
    check = by_name(checked(good(**change)), "times")
    assert check.level == "doubt" and says in check.text


def test_windows_that_overlap_or_do_not_fit_their_cell_are_a_doubt() -> None:
    made = good()
    assert made.cells[1].window is not None
    made.cells[1].window.opened = "2026-11-30T02:41:20.000+00:00"
    assert "8K × 1 and 8K × 4 overlap" in by_name(checked(made), "times").text
    made = good()
    made.cells[1].finished = "2026-11-30T02:42:20.000+00:00"
    assert "longer than the cell took" in by_name(checked(made), "times").text


def test_equal_figures_are_a_doubt_and_chance_is_not() -> None:
    made = good()
    assert made.cells[0].decode is not None and made.cells[1].decode is not None
    made.cells[1].decode = made.cells[0].decode.model_copy(deep=True)
    check = by_name(checked(made), "repeated figures")
    assert check.level == "doubt" and "8K × 1 and 8K × 4" in check.text
    for cell in (made.cells[0], made.cells[1]):
        assert cell.decode is not None
        for name in ("tpot_ms", "itl_ms", "ttft_ms"):
            setattr(cell.decode, name, records.spread(10.0))
    assert by_name(checked(made), "repeated figures").level == "good", "ten milliseconds sharp can happen twice"


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-30B-A3B-Instruct", 3), ("meta-llama/Llama-3.1-8B", 8), ("mistralai/Mixtral-8x7B-v0.1", 7),
     ("Qwen3.5-0.6B", 0.6), ("deepseek-ai/DeepSeek-V3", None), ("model-2b4", None), ("openai/gpt-oss-120b", 120),
     ("llama_70b_q4", 70), ("tiny", None), ("8B/phi", None)],
)  # fmt: skip
def test_the_size_in_a_models_name(name: str, billions: float | None) -> None:
    assert audit.size_in_name(name) == billions


@given(st.text(max_size=300))
def test_any_name_has_a_size_or_none(name: str) -> None:
    found = audit.size_in_name(name)
    assert found is None or 0 < found < 10_000


def test_faster_than_memory_is_said_in_words() -> None:
    made = good()
    made.engine.speculative_method = fact("none")
    check = by_name(checked(made), "hardware limit")
    assert check.level == "good" and check.checked and "4,800 GB/s" in check.text
    made.model.id = fact("some/model-70B")
    check = by_name(checked(made), "hardware limit")
    assert check.level == "note" and "mixture of experts" in check.text
    made.model.id = fact("some/model-900B")
    assert by_name(checked(made), "hardware limit").level == "doubt"
    made.model.id = fact("some/model")
    check = by_name(checked(made), "hardware limit")
    assert not check.checked and check.text.startswith("not checked")


@pytest.mark.parametrize("made", [records.every_kind(), records.seed_page(), records.record([])])
def test_every_record_is_checked(made: Record) -> None:
    found = audit.checks(made)
    assert {check.level for check in found} <= {"good", "note", "doubt"}
    names = [check.name for check in found]
    for name in ("consistency", "hardware limit", "isolation", "calibration", "self-check", "times", "identity"):
        assert name in names


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_damaged_record_stops_the_checks(data: st.DataObject) -> None:
    """Any number in it replaced by another, any time of day by any text."""
    content = json.loads(good().model_dump_json())
    content["started"] = data.draw(st.text(max_size=40) | st.datetimes().map(str))
    for cell in content["cells"]:
        cell["window"]["opened"] = data.draw(st.text(max_size=30) | st.datetimes().map(str))
        cell["window"]["length_s"] = data.draw(st.floats(allow_nan=False, allow_infinity=False))
        cell["concurrency"] = data.draw(st.integers(-5, 2**40))
        for name in ("value", "low", "high"):
            value = data.draw(st.none() | st.floats(allow_nan=False, allow_infinity=False))
            cell["decode"]["total_tok_s"][name] = value
        cell["decode"]["acceptance"] = {"length": data.draw(st.floats(-1, 9))}
    assert audit.checks(parse(json.dumps(content)))


def cells(**rates: tuple[float, float]) -> dict[tuple[str, int, int], Any]:
    """`d4=(rate, spread)` → the cell 8K × 4."""

    class Point:
        def __init__(self, rate: float, spread: float) -> None:
            self.rate_tok_s, self.rate_low, self.rate_high = rate, rate * (1 - spread), rate * (1 + spread)

    return {("decode", 8 * K, int(name[1:])): Point(*told) for name, told in rates.items()}


def test_agreement_is_told_cell_by_cell() -> None:
    mine = cells(d1=(100.0, 0.004), d4=(300.0, 0.004), d8=(500.0, 0.004))
    theirs = [cells(d1=(100.2, 0.004), d4=(270.0, 0.004)), cells(d1=(99.9, 0.004), d4=(271.0, 0.004))]
    one, four = reproductions.agree(mine, theirs)
    assert (one.name, one.agrees, one.others, one.low_tok_s, one.high_tok_s) == ("8K × 1", True, 2, 99.9, 100.2)
    assert four.agrees is False and four.difference.value == pytest.approx(300 / math.sqrt(270 * 271))
    words = reproductions.words(2, 1, [one, four])
    assert words.startswith("2 other runs of this configuration, 1 by other publishers: 1 of 2 cells agree")
    assert "11 % at 8K × 4, shown by the intervals" in words


def test_equal_runs_agree_but_for_a_few() -> None:
    """Of repeats without a difference, one cell in any is called apart in about one of twenty runs."""
    rng = random.Random(5)

    def run() -> dict[tuple[str, int, int], Any]:
        return cells(**{f"d{n}": (100 * n * math.exp(rng.gauss(0, 0.01)), 0.002) for n in range(1, 11)})

    apart = sum(
        any(a.agrees is False for a in reproductions.agree(run(), [run() for _ in range(5)])) for _ in range(200)
    )
    assert apart / 200 < 0.12


def test_repeats_are_grouped_and_other_versions_are_near(database: Database, tmp_path: Path) -> None:
    from sqlalchemy import insert

    from flatout.site import schema

    store = site_records.store(database, tmp_path)
    with database.write() as conn:
        for i in (1, 2):
            conn.execute(insert(schema.accounts).values(id=i, name=f"user{i}", created_us=0))
    mine = store.publish(site_records.taken(store.settings, 1), account_id=1, who="user1").public_id
    again = store.publish(site_records.taken(store.settings, 2, speed=1.001), account_id=1, who="user1").public_id
    theirs = store.publish(site_records.taken(store.settings, 3, speed=1.1), account_id=2, who="user2").public_id
    near = store.publish(site_records.taken(store.settings, 4, version="9.9"), account_id=2, who="user2").public_id
    far = store.publish(site_records.taken(store.settings, 5, gpu="B200"), account_id=2, who="user2").public_id
    with database.read() as conn:
        found = reproductions.reproductions(conn, store.row(mine))
        alone = reproductions.reproductions(conn, store.row(far))
    assert [(o.public_id, o.same_publisher, o.account) for o in found.others] == [
        (theirs, False, "user2"), (again, True, "user1"),
    ]  # fmt: skip
    assert found.by_others == 1 and found.caution is None
    assert len(found.agreement) == 12 and all(a.others == 2 for a in found.agreement)
    assert [(n.engine_version, n.runs, n.public_id) for n in found.near] == [("9.9", 1, near)]
    assert alone.others == [] and "nobody has reproduced it" in alone.words
    store.hide(theirs, who="mod", reason="no")
    with database.read() as conn:
        assert [o.public_id for o in reproductions.reproductions(conn, store.row(mine)).others] == [again]
