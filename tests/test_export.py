"""Exports: rows equal the record, what is unknown stays empty, nothing in a text can act where it is opened."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.flags import MEASURED
from flatout.record import Cell, Distribution, Record
from flatout.show import export
from flatout.show.safe import clean
from tests import records
from tests.test_show_table import HOSTILE, hostile

NAMES = [column.name for column in export.COLUMNS]


def parsed(text: str) -> list[dict[str, Any]]:
    head, *body = list(csv.reader(io.StringIO(text)))
    assert head == NAMES
    return [
        {name: export.csv_value(name, field) for name, field in zip(head, row, strict=True)} for row in body
    ]  # fmt: skip


def test_every_planned_cell_has_a_row() -> None:
    for record in (records.seed_page(), records.every_kind()):
        rows = parsed(export.csv_table(record))
        assert [row["cell"] for row in rows] == [cell.id for cell in record.cells]
        assert rows == export.json_rows(record)


def test_figures_of_a_cell() -> None:
    record = records.seed_page()
    rows = {row["cell"]: row for row in export.json_rows(record)}
    cell = rows["d/8192/8"]
    assert (cell["total_tok_s"], cell["per_request_tok_s_p50"], cell["ttft_ms_p50"]) == (2422.2, 309.4, 96.0)
    assert (cell["itl_ms_p50"], cell["active_server_mean"], cell["completed"]) == (3.2, 8.6, 16)
    assert (cell["output_tokens"], cell["measured_s"], cell["status"]) == (72668.0, 30.0, "doubtful")
    assert (cell["flags"], cell["model"], cell["hardware"]) == ("contaminated", "Qwen/Qwen3.5-4B", "H200 NVL 141 GB")
    prefill = rows["p/8192"]
    assert (prefill["total_tok_s"], prefill["ttft_ms_p50"], prefill["completed"]) == (37100.0, 219.0, 3)
    assert prefill["total_low_tok_s"] == pytest.approx(37100 * 0.996) and prefill["itl_ms_p50"] is None
    burst = next(row for row in export.json_rows(records.every_kind()) if row["phase"] == "burst")
    assert (burst["total_tok_s"], burst["measured_s"], burst["completed"]) == (2345.0, 12.5, 16)


def test_percentiles_are_followed_by_their_intervals() -> None:
    cell = records.decode("8K", 8192, 8, 2422.2)
    assert cell.decode is not None
    cell.decode.itl_ms = Distribution(p50=3.2, p99=9.0, p50_low=3.1, p50_high=3.3, p99_low=8.0, p99_high=11.0)
    (row,) = export.json_rows(records.record([cell]))
    names = list(row)
    at = names.index("itl_ms_p99")
    assert names[at : at + 3] == ["itl_ms_p99", "itl_ms_p99_low", "itl_ms_p99_high"]
    assert [row[name] for name in names[at : at + 3]] == [9.0, 8.0, 11.0]
    assert (row["itl_ms_p50_low"], row["itl_ms_p50_high"], row["itl_ms_p90_low"]) == (3.1, 3.3, None)


def test_a_cell_without_numbers_shows_none() -> None:
    record = records.every_kind()
    for cell in record.cells:
        if cell.decode is not None:
            cell.status = "no_steady_state"
    always = {column.name for column in export.COLUMNS if column.always}
    text = export.csv_table(record)
    for row, fields in zip(export.json_rows(record), csv.DictReader(io.StringIO(text)), strict=True):
        if row["status"] not in MEASURED:
            assert all(value is None for name, value in row.items() if name not in always)
            assert all(value == "" for name, value in fields.items() if name not in always)


def test_a_zero_is_a_zero_and_a_gap_is_a_gap() -> None:
    record = records.record([records.decode("1K", 1024, 1, 100.0, completed=0, active=None)])
    (row,) = export.json_rows(record)
    assert row["completed"] == 0 and row["failed_requests"] == 0 and row["active_server_mean"] is None
    (fields,) = csv.DictReader(io.StringIO(export.csv_table(record)))
    assert (fields["completed"], fields["active_server_mean"]) == ("0", "")


@pytest.mark.parametrize("bad", ["=1+1", "+cmd", "-2", "@SUM(A1)", "\t=1", "\r\n=1", "＝1", "'=1", "'", " =1"])
def test_formulas_stay_text(bad: str) -> None:
    record = records.record([records.decode("1K", 1024, 1, status="failed", error=bad, reason=bad)])
    for fields in csv.DictReader(io.StringIO(export.csv_table(record))):
        for value in fields.values():
            assert not re.match(r"[=+\-@\t\r＝＋－＠]", value), value
        assert export.csv_value("error", fields["error"]) == clean(bad)
    negative = records.record([records.decode("1K", 1024, 1, 100.0)])
    assert negative.cells[0].decode is not None
    negative.cells[0].decode.drift_change = -0.03
    assert parsed(export.csv_table(negative))[0]["drift_change"] == -0.03


FINITE = st.floats(allow_nan=False, allow_infinity=False)
MAYBE = st.none() | FINITE


@st.composite
def changed(draw: st.DrawFn) -> Record:
    """A record with any strings and any numbers that a record may hold."""
    record = hostile(draw(HOSTILE | st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)))
    for cell in record.cells:
        cell.order = draw(st.none() | st.integers(-(2**62), 2**62))
        if cell.decode is not None:
            cell.decode.total_tok_s.value = draw(MAYBE)
            cell.decode.ttft_ms.p50 = draw(MAYBE)
            cell.decode.drift_change = draw(MAYBE)
            cell.decode.completed = draw(st.none() | st.integers(0, 2**62))
    return record


@settings(max_examples=40, deadline=None)
@given(changed())
def test_csv_and_json_give_the_record_back(record: Record) -> None:
    rows = export.json_rows(record)
    text = export.csv_table(record)
    assert parsed(text) == rows
    assert len(text.splitlines()) == len(rows) + 1
    assert json.loads(export.json_text(rows)) == rows
    for cell, row in zip(record.cells, rows, strict=True):
        assert_same(cell, row)


def assert_same(cell: Cell, row: dict[str, Any]) -> None:
    assert (row["context_tokens"], row["concurrency"], row["order"]) == (
        cell.context_tokens, cell.concurrency, cell.order,
    )  # fmt: skip
    assert row["error"] == (None if cell.error is None else clean(cell.error, 4000))
    if cell.decode is not None and cell.status in MEASURED:
        assert row["total_tok_s"] == cell.decode.total_tok_s.value
        assert row["drift_change"] == cell.decode.drift_change
        assert row["completed"] == cell.decode.completed


def test_json_ends_no_script_element() -> None:
    text = export.json_text(export.json_rows(hostile("</script><script>alert(1)")))
    assert "</" not in text
    assert json.loads(text)[0]["model"].startswith("</script>")


def test_no_number_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        export.json_text([{"a": math.nan}])


def test_parquet_is_the_rows() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    record = records.every_kind()
    table = pq.read_table(io.BytesIO(export.parquet(record)))
    assert table.column_names == NAMES and table.to_pylist() == export.json_rows(record)
    assert str(table.schema.field("completed").type) == "int64" and str(table.schema.field("status").type) == "string"
    assert table.schema.metadata[b"flatout"] == b"cells/1"
    record.cells[3].need_tokens = 2**80
    with pytest.raises(export.ExportError, match="does not fit"):
        export.parquet(record)


def test_parquet_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(export.ExportError, match=r"pip install 'flatout\[parquet\]'"):
        export.parquet(records.seed_page())


def test_heavy_parts_are_not_imported() -> None:
    import subprocess

    code = (
        "import sys, flatout.show.export, flatout.limits; print([m for m in ('pyarrow', 'numpy') if m in sys.modules])"
    )
    root = Path(__file__).parents[1] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
