"""Records and published tables against the limit: the seed's page, speculation of unknown length, impossible speeds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from flatout.limits import (
    CellReach,
    Settings,
    above,
    by_hand,
    hardware,
    limits_for,
    limits_of,
    limits_of_page,
    model_shape,
    points_of_page,
    settings_of,
    speeds_above,
)
from flatout.record import Acceptance, Record
from flatout.show import ceiling, document
from tests import limit_models as m
from tests import records
from tests.hostile import HOSTILE, hostile, tables
from tests.test_limits_roofline import GPUS, SHAPES

QWEN = model_shape(m.QWEN35_4B_FILE)
H200 = hardware("H200 NVL")
PAGE: dict[str, Any] = json.loads(records.SEED.read_text(encoding="utf-8"))
SPECULATED = Settings(speculative=True, draft_tokens=8, shared_context=None)


def seed() -> dict[str, CellReach]:
    return limits_of_page(PAGE, QWEN, H200, SPECULATED).by_id()


def test_every_cell_of_the_seed_has_its_limit() -> None:
    found = seed()
    assert len(found) == len(PAGE["cells"]) == 55
    assert all(cell.limit_tok_s and cell.binding for cell in found.values())
    assert sum(cell.share is not None for cell in found.values()) == 37
    prefill = [cell.share for cell in found.values() if cell.point.phase == "prefill"]
    assert all(share is not None and 0.3 < share < 0.45 for share in prefill)
    one = found["d/8192/1"]
    # weights 8.41 GB, cache 0.27 GB, state 0.10 GB at 4,800 GB/s
    assert one.limit_tok_s == pytest.approx(4800 / (8.411 + 0.2684 + 0.103), rel=1e-3)
    assert one.share == pytest.approx(0.831, abs=0.002) and one.binding == "weights"
    assert found["d/257024/4"].binding == "kv"


def test_speculation_of_unknown_length_is_never_called_impossible() -> None:
    found = seed()
    longest = found["d/257024/1"]
    assert longest.share is not None and longest.share > 1
    assert longest.least_acceptance == pytest.approx(292.5 / (longest.limit_tok_s or 0))
    assert longest.note is not None and "1.03" in longest.note
    shared = found["d/131072/8"]
    assert shared.share is not None and shared.share > 1.3 and shared.least_acceptance == 1.0
    assert shared.note is not None and "1.37 where each stream reads its own" in shared.note
    assert found["d/8192/1"].note is None
    assert above(points_of_page(PAGE), QWEN, H200, SPECULATED) == []
    plain = Settings(speculative=False, shared_context=False)
    assert above(points_of_page(PAGE), QWEN, H200, replace(plain, kv_bytes=2.0)) != []


def test_the_seed_as_a_record_agrees_with_the_page() -> None:
    record = records.seed_page()
    assert settings_of(record) == Settings(gpus=1, speculative=True, draft_tokens=8, shared_context=False)
    of_record = limits_of(record, QWEN, H200, SPECULATED).by_id()
    for name, cell in seed().items():
        same = of_record[name]
        assert (same.limit_tok_s, same.binding) == (cell.limit_tok_s, cell.binding)
        assert same.share == pytest.approx(cell.share) if cell.share is not None else same.share is None


def plain_record(tok_s: float, **more: Any) -> Record:
    cells = [records.decode("8K", 8192, 1, tok_s, **more), records.prefill("8K", 8192, 50_000.0, 164.0)]
    engine = records.engine(
        speculative_method=records.fact(None), draft_model=records.fact(None), draft_length=records.fact(None)
    )
    return records.record(cells, engine=engine)


def test_speeds_that_cannot_be() -> None:
    assert speeds_above(plain_record(500.0), QWEN, H200) == []
    (found,) = speeds_above(plain_record(5_000.0), QWEN, H200)
    assert found.point.id == "d/8192/1" and found.measured_tok_s == pytest.approx(4980)
    assert 550 < found.ceiling_tok_s < 620 and "cannot decode faster" in found.why and "token count" in found.advice
    fast = plain_record(500.0)
    fast.cells[1] = records.prefill("8K", 8192, 900_000.0, 9.1)
    (prefill,) = speeds_above(fast, QWEN, H200)
    assert prefill.point.phase == "prefill" and "cached tokens" in prefill.advice
    assert speeds_above(fast, QWEN, by_hand(4800)) == []


def test_speculation_lifts_what_cannot_be() -> None:
    seed_like = records.record([records.decode("8K", 8192, 1, 5_000.0)])
    assert [a.point.id for a in speeds_above(seed_like, QWEN, H200)] == []
    known = records.record([records.decode("8K", 8192, 1, 5_000.0, acceptance=Acceptance(length=2.0, how="counters"))])
    assert [a.point.id for a in speeds_above(known, QWEN, H200)] == ["d/8192/1"]
    unknown = records.record(
        [records.decode("8K", 8192, 1, 90_000.0)], engine=records.engine(draft_length=records.fact(None))
    )
    assert speeds_above(unknown, QWEN, H200) == []


def test_a_known_acceptance_length_scales_the_limit() -> None:
    record = records.record([records.decode("8K", 8192, 1, 1_000.0, acceptance=Acceptance(length=2.5, how="counters"))])
    (cell,) = limits_of(record, QWEN, H200).cells
    assert cell.acceptance_length == 2.5 and cell.least_acceptance is None
    assert cell.limit_tok_s == pytest.approx(2.5 * (seed()["d/8192/1"].limit_tok_s or 0))
    assert cell.share == pytest.approx(1_000 / (cell.limit_tok_s or 0))


def command(text: str, **more: Any) -> Settings:
    record = records.seed_page()
    record.engine.launch_command = records.fact(text)
    for name, value in more.items():
        record.hardware.facts[name] = records.fact(value)
    return settings_of(record)


def test_settings_from_the_launch_command() -> None:
    assert command("vllm serve x --tensor-parallel-size 4").tensor_parallel == 4
    both = command("sglang serve --tp=2 --dp-size 3 --kv-cache-dtype fp8_e5m2", gpu_count=8)
    assert (both.tensor_parallel, both.gpus, both.kv_bytes) == (2, 8, 1.0)
    assert command("vllm serve --kv-cache-dtype auto").kv_bytes is None
    assert command("llama-server -ctk q8_0 -ctv q4_0").kv_bytes == pytest.approx((34 / 32 + 18 / 32) / 2)
    assert command("llama-server --cache-type-k odd").kv_bytes is None
    for odd in ("--tp", "--tp x", "--tp 0", "--tp ٣", "--tp 99999999", ""):
        assert command(odd).tensor_parallel == 1


def test_queued_cells_are_held_against_what_ran() -> None:
    cell = seed()["d/8192/32"]
    assert cell.point.running == 31.2
    record = limits_of(records.seed_page(), QWEN, H200).by_id()
    assert record["d/8192/64"].point.running == 32.0


def test_bursts_and_unknown_contexts_have_no_limit() -> None:
    found = limits_of(records.every_kind(), QWEN, H200).cells
    assert len(found) == len(records.every_kind().cells)
    without = {cell.point.id for cell in found if cell.limit is None}
    assert without == {"p/max", "d/max/1", "d/max/2", "b/1024/16", "b/1024/64"}
    assert all(cell.reason for cell in found if cell.share is None)


@pytest.mark.parametrize(
    "page",
    [{}, {"cells": "no"}, {"cells": [3]}, {"cells": [{}]}, {"cells": [{"concurrency": "1"}]},
     {"cells": [{"concurrency": 1, "total_tok_s": float("nan")}]}, {"cells": [{"concurrency": 0}]}],
)  # fmt: skip
def test_a_page_that_is_none(page: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="page"):
        limits_of_page(page, QWEN, H200)


@settings(max_examples=60)
@given(
    st.sampled_from(SHAPES), st.sampled_from(GPUS), st.integers(1, 300_000), st.integers(1, 256),
    st.floats(0.01, 1.0), st.sampled_from([False, True, None]), st.sampled_from([1, 2, 8]),
)  # fmt: skip
def test_what_the_limit_allows_is_never_called_impossible(
    shape: Any, gpu: Any, context: int, streams: int, share: float, shared: bool | None, gpus: int
) -> None:
    chosen = Settings(tensor_parallel=gpus, shared_context=shared)
    report = limits_for(shape, gpu, [context], [streams], chosen)
    reached = [
        replace(c.point, low_tok_s=c.limit_tok_s * share) for c in report.cells if c.limit_tok_s is not None
    ]  # fmt: skip
    assert above(reached, shape, gpu, chosen) == []


def test_tables_for_people() -> None:
    report = limits_of_page(PAGE, QWEN, H200, SPECULATED)
    text = document.text(ceiling.document(report), 100)
    assert all(len(row) <= 100 for row in text.splitlines())
    assert "decode 251K 1 292.5 283.4 103 % KV cache 1.03" in " ".join(text.split())
    assert "4,800 GB/s" in text and "24 linear state, 8 full" in text
    (rows,) = tables(document.markdown(ceiling.document(report)))
    assert rows[0] == ["phase", "context", "at once", "tok/s", "limit", "reached", "binds", "accept. ≥"]
    assert len(rows) == 56 and rows[1][:6] == ["prefill", "8K", "1", "37.1K", "107.8K", "34 %"]
    planned = limits_for(QWEN, H200, [8192, 131072], [1, 8])
    (modelled,) = tables(document.markdown(ceiling.document(planned)))
    assert modelled[0] == ["phase", "context", "at once", "limit", "each", "GB/step", "binds"] and len(modelled) == 7
    assert "not known" not in document.text(ceiling.document(planned))
    no_peak = document.text(ceiling.document(limits_for(QWEN, hardware("Apple M2 Ultra"), [8192], [1])))
    assert "peak is not known" in no_peak


@settings(max_examples=30, deadline=None)
@given(HOSTILE, st.integers(40, 120))
def test_nothing_from_a_record_acts(text: str, width: int) -> None:
    report = limits_of(hostile(text), replace(QWEN, name=text), replace(H200, name=text, source=text))
    shown = document.text(ceiling.document(report), width)
    assert all(c == "\n" or c.isprintable() for c in shown)
    made = MarkdownIt("commonmark").enable("table").parse(document.markdown(ceiling.document(report)))
    assert not any(token.type == "html_block" for token in made)
    assert len(tables(document.markdown(ceiling.document(report)))) == 1
