"""The formats of other tools: llama-bench's table, Bencher, localmaxxing, the summary of a GitHub job."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from markdown_it import MarkdownIt

from flatout.limits import model_shape
from flatout.record import Acceptance, Hardware, Record
from flatout.show import export, github
from tests import limit_models, records
from tests.test_show_markdown import tables
from tests.test_show_table import HOSTILE, hostile

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
    text = export.llama_bench(records.seed_page())
    (rows,) = tables(text)
    assert rows[0] == ["model", "backend", "test", "t/s"] and len(rows) == 56
    by_test = {row[2]: row[3] for row in rows[1:]}
    assert by_test["pp8192"] == "37100.00 ± 148.40"
    assert by_test["tg4096 @ d8192"] == "454.20 ± 1.82"
    assert by_test["tg4096 @ d8192 x 8"] == "2422.20 ± 9.69 (doubtful)"
    assert by_test["tg4096 @ d8192 x 32"] == "4657.10 ± 18.63 (requests queued)"
    assert by_test["tg4096 @ d8192 x 128"] == "over capacity"
    assert rows[1][:2] == ["Qwen/Qwen3.5-4B BF16", "cuda"]
    assert "sglang 0.5.6" in text and "half the 95 % interval" in text
    body = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in body}) == 1


def test_llama_bench_with_a_shape_and_bursts() -> None:
    shape = model_shape(limit_models.QWEN35_4B)
    (rows,) = tables(export.llama_bench(records.every_kind(), shape))
    assert rows[0] == ["model", "size", "params", "backend", "test", "t/s"]
    assert rows[1][1:3] == ["7.83 GiB", "4.21 B"]
    tests = [row[4] for row in rows[1:]]
    assert "pp1024+tg256 x 16" in tests and "ppmax" in tests


def test_bencher_metrics() -> None:
    found = export.bencher(records.seed_page())
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
    found = export.bencher(twins)
    assert sorted(m["total-tok-s"]["value"] for m in found.values()) == [100.0, 200.0]


def test_localmaxxing_one_stream_by_default() -> None:
    rows = export.localmaxxing(records.seed_page())
    assert [row["promptTokens"] for row in rows] == [8192, 16384, 32768, 65536, 131072, 257024]
    first = rows[0]
    assert (first["tokSOut"], first["ttftMs"], first["tokSPrefill"]) == (455.5, 219.0, 37100.0)
    assert (first["hfId"], first["engineName"], first["quantization"]) == ("Qwen/Qwen3.5-4B", "sglang", "BF16")
    assert first["prefillTokens"] == 0 and first["engineFlags"]["concurrency"] == 1
    assert first["engineFlags"]["specMethod"] == "DFLASH" and first["engineFlags"]["tensorParallel"] == 1
    assert first["hardware"]["gpuName"] == "H200 NVL" and first["hardware"]["vramGb"] == 141
    assert all(export.localmaxxing_missing(row) == [] for row in rows)
    assert all("AGGREGATE" not in row["notes"] for row in rows)
    json.dumps(rows, allow_nan=False)


def test_localmaxxing_aggregates_are_labelled_and_doubtful_cells_left_out() -> None:
    rows = export.localmaxxing(records.seed_page(), aggregates=True)
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
    (row,) = export.localmaxxing(record)
    assert (row["prefillTokens"], row["ttftMs"]) == (1024, 20.0)
    assert "promptTokens" not in row and "tokSPrefill" not in row and "hardware" not in row
    assert row["engineFlags"]["specMeanAcceptedLength"] == 2.5
    assert export.localmaxxing_missing(row) == ["hardware"]
    assert export.localmaxxing_missing({}) == [
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
    assert export.localmaxxing(record)[0]["hardware"] == expected


def test_github_summary() -> None:
    text = export.github_summary(records.seed_page())
    assert text.startswith("## flatout: Qwen/Qwen3.5-4B on H200 NVL 141 GB\n\n**37 of 55 cells measured, 11 doubtful")
    found = tables(text)
    assert len(found) == 3 and len(found[2]) == 56 and found[2][0][:4] == ["phase", "context", "at once", "status"]
    assert text.count("<details>") == text.count("</details>") == 1


def test_github_summary_fits_what_github_shows() -> None:
    many = records.record([records.decode("8K", 8192, i + 1, 100.0) for i in range(9000)])
    text = export.github_summary(many)
    assert len(text.encode()) <= github.MOST_BYTES and "left out" in text
    more = records.record([records.decode(str(i), i + 1, 1, 100.0) for i in range(40_000)])
    assert len(export.github_summary(more).encode()) <= github.MOST_BYTES


@settings(max_examples=25, deadline=None)
@given(HOSTILE)
def test_nothing_from_a_record_acts(text: str) -> None:
    record: Record = hostile(text)
    jsonschema.validate(export.bencher(record), BMF)
    export.json_text(export.localmaxxing(record, aggregates=True))
    assert len(tables(export.llama_bench(record))) == 1
    summary = export.github_summary(record)
    assert all(c == "\n" or c.isprintable() or c == "\u2060" for c in summary)
    blocks = [t.content for t in MarkdownIt("commonmark").enable("table").parse(summary) if t.type == "html_block"]
    assert [block.strip() for block in blocks] == ["<details><summary>All measurements</summary>", "</details>"]
