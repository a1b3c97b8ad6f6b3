"""Exports: rows equal the record, what is unknown stays empty, nothing in a text can act where it is opened."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from flatout.flags import MEASURED
from flatout.limits import model_shape
from flatout.record import Acceptance, Cell, Distribution, Hardware, Record
from flatout.show import exports
from flatout.show.exports import bencher, github, llama_bench, localmaxxing, parquet
from flatout.show.exports import csv as csv_export
from flatout.show.rows import COLUMNS, json_text, rows
from flatout.show.safe import clean
from tests import limit_models, records
from tests.hostile import HOSTILE, hostile, tables

NAMES = [column.name for column in COLUMNS]
FIGURES = NAMES[NAMES.index("total_tok_s") : NAMES.index("cell_started")]


def parsed(text: str) -> list[dict[str, Any]]:
    head, *body = list(csv.reader(io.StringIO(text)))
    assert head == NAMES
    return [
        {name: csv_export.value(name, field) for name, field in zip(head, row, strict=True)} for row in body
    ]  # fmt: skip


def test_every_planned_cell_has_a_row() -> None:
    for record in (records.seed_page(), records.every_kind()):
        read = parsed(csv_export.write(record))
        assert [row["cell"] for row in read] == [cell.id for cell in record.cells]
        assert read == rows(record)
    two = records.seed_page()
    assert csv_export.write(two, two.cells[:2]).count("\n") == 3


def test_figures_of_a_cell() -> None:
    record = records.seed_page()
    by_cell = {row["cell"]: row for row in rows(record)}
    cell = by_cell["d/8192/8"]
    assert (cell["total_tok_s"], cell["per_request_tok_s_p50"], cell["ttft_ms_p50"]) == (2422.2, 309.4, 96.0)
    assert (cell["itl_ms_p50"], cell["active_server_mean"], cell["completed"]) == (3.2, 8.6, 16)
    assert (cell["output_tokens"], cell["measured_s"], cell["status"]) == (72668.0, 30.0, "doubtful")
    assert (cell["flags"], cell["model"], cell["hardware"]) == ("contaminated", "Qwen/Qwen3.5-4B", "H200 NVL 141 GB")
    prefill = by_cell["p/8192"]
    assert (prefill["total_tok_s"], prefill["ttft_ms_p50"], prefill["completed"]) == (37100.0, 219.0, 3)
    assert prefill["total_tok_s_low"] == pytest.approx(37100 * 0.996) and prefill["itl_ms_p50"] is None
    burst = next(row for row in rows(records.every_kind()) if row["phase"] == "burst")
    assert (burst["total_tok_s"], burst["measured_s"], burst["completed"]) == (2345.0, 12.5, 16)


def test_percentiles_are_followed_by_their_intervals() -> None:
    cell = records.decode("8K", 8192, 8, 2422.2)
    assert cell.decode is not None
    cell.decode.itl_ms = Distribution(p50=3.2, p99=9.0, p50_low=3.1, p50_high=3.3, p99_low=8.0, p99_high=11.0)
    (row,) = rows(records.record([cell]))
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
    text = csv_export.write(record)
    for row, fields in zip(rows(record), csv.DictReader(io.StringIO(text)), strict=True):
        if row["status"] not in MEASURED:
            assert all(value is None for name, value in row.items() if name in FIGURES)
            assert all(value == "" for name, value in fields.items() if name in FIGURES)


def test_a_zero_is_a_zero_and_a_gap_is_a_gap() -> None:
    record = records.record([records.decode("1K", 1024, 1, 100.0, completed=0, active=None)])
    (row,) = rows(record)
    assert row["completed"] == 0 and row["failed_requests"] == 0 and row["active_server_mean"] is None
    (fields,) = csv.DictReader(io.StringIO(csv_export.write(record)))
    assert (fields["completed"], fields["active_server_mean"]) == ("0", "")


@pytest.mark.parametrize("bad", ["=1+1", "+cmd", "-2", "@SUM(A1)", "\t=1", "\r\n=1", "＝1", "'=1", "'", " =1"])
def test_formulas_stay_text(bad: str) -> None:
    record = records.record([records.decode("1K", 1024, 1, status="failed", error=bad, reason=bad)])
    for fields in csv.DictReader(io.StringIO(csv_export.write(record))):
        for value in fields.values():
            assert not re.match(r"[=+\-@\t\r＝＋－＠]", value), value
        assert csv_export.value("error", fields["error"]) == clean(bad)
    negative = records.record([records.decode("1K", 1024, 1, 100.0)])
    assert negative.cells[0].decode is not None
    negative.cells[0].decode.drift_change = -0.03
    assert parsed(csv_export.write(negative))[0]["drift_change"] == -0.03


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


@example(records.record([records.decode("1K", 1024, 1, 5.0, reason="\r")]))
@settings(max_examples=40, deadline=None)
@given(changed())
def test_csv_and_json_give_the_record_back(record: Record) -> None:
    found = rows(record)
    text = csv_export.write(record)
    assert parsed(text) == found
    assert len(text.splitlines()) == len(found) + 1
    assert json.loads(json_text(found)) == found
    for cell, row in zip(record.cells, found, strict=True):
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
    text = json_text(rows(hostile("</script><script>alert(1)")))
    assert "</" not in text
    assert json.loads(text)[0]["model"].startswith("</script>")


def test_no_number_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        json_text([{"a": math.nan}])


def test_parquet_is_the_rows() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    record = records.every_kind()
    table = pq.read_table(io.BytesIO(parquet.write(record)))
    assert table.column_names == NAMES and table.to_pylist() == rows(record)
    assert str(table.schema.field("completed").type) == "int64" and str(table.schema.field("status").type) == "string"
    assert table.schema.metadata[b"flatout"] == b"cells/1"
    record.cells[3].need_tokens = 2**80
    with pytest.raises(exports.ExportError, match="does not fit"):
        parquet.write(record)


def test_parquet_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(exports.ExportError, match=r"pip install 'flatout\[parquet\]'"):
        parquet.write(records.seed_page())


def test_heavy_parts_are_not_imported() -> None:
    code = "import sys, flatout.show.rows, flatout.show.exports.parquet; print({'pyarrow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


BMF: dict[str, Any] = {
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
                    "required": ["value"],
                    "additionalProperties": False,
                }
            },
        }
    },
}
"""The schema that Bencher's reference gives (bencher.dev, BMF), no further fields allowed."""


def test_llama_bench_rows() -> None:
    text = llama_bench.write(records.seed_page())
    (rows,) = tables(text)
    assert rows[0] == ["model", "backend", "test", "t/s"] and len(rows) == 56
    by_test = {row[2]: row[3] for row in rows[1:]}
    assert by_test["pp8192"] == "37100.00 ± 148.40"
    assert by_test["tg4096 @ d8192"] == "454.20 ± 1.82"
    assert by_test["tg4096 @ d8192 x 8"] == "2422.20 ± 9.69 (doubtful)"
    assert by_test["tg4096 @ d8192 x 32"] == "4657.10 ± 18.63 (requests queued)"
    assert by_test["tg4096 @ d8192 x 128"] == "over capacity"
    assert rows[1][:2] == ["Qwen/Qwen3.5-4B BF16", "cuda"]
    assert "sglang 0.5.6" in text and "larger half of the 95 % interval" in text
    body = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in body}) == 1


def test_llama_bench_with_a_shape_and_bursts() -> None:
    shape = model_shape(limit_models.QWEN35_4B)
    (rows,) = tables(llama_bench.write(records.every_kind(), shape))
    assert rows[0] == ["model", "size", "params", "backend", "test", "t/s"]
    assert rows[1][1:3] == ["7.83 GiB", "4.21 B"]
    tests = [row[4] for row in rows[1:]]
    assert "pp1024+tg256 x 16" in tests and "ppmax" in tests


def test_bencher_metrics() -> None:
    found = bencher.bencher(records.seed_page())
    jsonschema.validate(found, BMF)
    assert found["prefill 8K"]["prefill-tok-s"] == {
        "value": 37100.0, "lower_value": pytest.approx(36951.6), "upper_value": pytest.approx(37248.4),
    }  # fmt: skip
    assert found["decode 8K x4"]["total-tok-s"]["value"] == 1508.8
    assert found["decode 8K x4"]["ttft-ms"] == {"value": 84.0}
    assert "decode 8K x8" not in found and "decode 8K x128" not in found
    assert all(metric["value"] > 0 for measures in found.values() for metric in measures.values())


def test_bencher_keeps_cells_of_the_same_name_apart() -> None:
    twins = records.record([records.decode("8K", 8192, 1, 100.0), records.decode("8K", 8000, 1, 200.0)])
    found = bencher.bencher(twins)
    assert sorted(m["total-tok-s"]["value"] for m in found.values()) == [100.0, 200.0]


def test_localmaxxing_one_stream_by_default() -> None:
    rows = localmaxxing.localmaxxing(records.seed_page())
    assert [row["promptTokens"] for row in rows] == [8192, 16384, 32768, 65536, 131072, 257024]
    first = rows[0]
    assert (first["tokSOut"], first["ttftMs"], first["tokSPrefill"]) == (455.5, 219.0, 37100.0)
    assert (first["hfId"], first["engineName"], first["quantization"]) == ("Qwen/Qwen3.5-4B", "sglang", "BF16")
    assert first["prefillTokens"] == 0 and first["engineFlags"]["concurrency"] == 1
    assert first["engineFlags"]["specMethod"] == "DFLASH" and first["engineFlags"]["tensorParallel"] == 1
    assert first["hardware"]["gpuName"] == "H200 NVL" and first["hardware"]["vramGb"] == 141
    assert all(localmaxxing.localmaxxing_missing(row) == [] for row in rows)
    assert all("AGGREGATE" not in row["notes"] for row in rows)
    json.dumps(rows, allow_nan=False)


def test_localmaxxing_aggregates_are_labelled_and_doubtful_cells_left_out() -> None:
    rows = localmaxxing.localmaxxing(records.seed_page(), aggregates=True)
    many = [row for row in rows if row["engineFlags"]["concurrency"] > 1]
    assert many and all(row["notes"].startswith("AGGREGATE: tokSOut is the sum over") for row in many)
    queued = next(r for r in many if r["engineFlags"]["concurrency"] == 32 and r["promptTokens"] == 8192)
    assert queued["tokSOut"] == 4657.1 and "31.2 running on average" in queued["notes"]
    assert not any(r["tokSOut"] == 2422.2 for r in rows)


def test_localmaxxing_without_a_prefill_cell_or_hardware() -> None:
    record = records.record(
        [records.decode("1K", 1024, 1, 100.0, ttft_ms=20.0, acceptance=Acceptance(length=2.5, how="counters"))],
        hardware=Hardware(describes="client only", facts={"gpu": records.fact("RTX 3090")}),
    )
    (row,) = localmaxxing.localmaxxing(record)
    assert (row["prefillTokens"], row["ttftMs"]) == (1024, 20.0)
    assert "promptTokens" not in row and "tokSPrefill" not in row and "hardware" not in row
    assert row["engineFlags"]["specMeanAcceptedLength"] == 2.5
    assert localmaxxing.localmaxxing_missing(row) == ["hardware"]
    assert localmaxxing.localmaxxing_missing({}) == [
        "hfId", "hardware", "engineName", "quantization", "tokSOut", "tokSPrefill or tokSTotal or ttftMs or peakVramGb",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"type": "unified_memory", "gpu": "Apple M2 Ultra", "memory_gb": 192},
         {"hwClass": "UNIFIED", "chipFamily": "Apple M2 Ultra", "chipVendor": "Apple", "unifiedMemoryGb": 192}),
        ({"type": "cpu_only", "cpu": "AMD EPYC 9654", "ram_gb": 768},
         {"hwClass": "CPU_ONLY", "cpu": "AMD EPYC 9654", "ramGb": 768}),
        ({"type": "discrete_gpu", "gpu": "L4", "gpu_count": 2, "gpu_memory_gb": 24},
         {"hwClass": "DISCRETE_GPU", "gpuName": "L4", "gpuCount": 2, "vramGb": 24}),
    ],
)  # fmt: skip
def test_localmaxxing_hardware(facts: dict[str, Any], expected: dict[str, Any]) -> None:
    made = {name: records.fact(value) for name, value in facts.items()}
    record = records.record([records.decode("1K", 1024, 1, 100.0)], hardware=Hardware(describes="server", facts=made))
    assert localmaxxing.localmaxxing(record)[0]["hardware"] == expected


def test_github_summary() -> None:
    text = github.write(records.seed_page())
    assert text.startswith("## flatout: Qwen/Qwen3.5-4B on H200 NVL 141 GB\n\n**37 of 55 cells measured, 11 doubtful")
    found = tables(text)
    assert len(found) == 3 and len(found[2]) == 56 and found[2][0][:4] == ["phase", "context", "at once", "status"]
    assert text.count("<details>") == text.count("</details>") == 1


def test_github_summary_fits_what_github_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(github, "MOST_BYTES", 10_000)
    many = records.record([records.decode("8K", 8192, i + 1, 100.0) for i in range(90)])
    text = github.write(many)
    assert len(text.encode()) <= github.MOST_BYTES and "left out" in text
    more = records.record([records.decode(str(i), i + 1, 1, 100.0) for i in range(600)])
    assert len(github.write(more).encode()) <= github.MOST_BYTES and "600 cells are too many" in github.write(more)


@settings(max_examples=25, deadline=None)
@given(HOSTILE)
def test_nothing_from_a_record_acts(text: str) -> None:
    record = hostile(text)
    jsonschema.validate(bencher.bencher(record), BMF)
    json_text(localmaxxing.localmaxxing(record, aggregates=True))
    assert len(tables(llama_bench.write(record))) == 1
    summary = github.write(record)
    assert all(c == "\n" or c.isprintable() or c == "\u2060" for c in summary)
    blocks = [t.content for t in MarkdownIt("commonmark").enable("table").parse(summary) if t.type == "html_block"]
    assert [block.strip() for block in blocks] == ["<details><summary>All measurements</summary>", "</details>"]


def test_a_file_is_a_format() -> None:
    names = exports.formats()
    assert {"csv", "json", "md", "parquet", "llama-bench", "localmaxxing-all"} <= set(names)
    for name in names:
        content = exports.write(records.every_kind(), name)
        assert content and isinstance(content, bytes if name == "parquet" else str)
    with pytest.raises(exports.ExportError, match="it is one of bencher, csv"):
        exports.write(records.seed_page(), "xml")
