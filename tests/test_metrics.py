"""The table of figures: every path lies in the record, every definition stands in the docs, every reason is found."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from flatout import metrics
from flatout.metrics import BY_NAME, METRICS, PARTS, SPEED, read
from flatout.record import BurstFigures, Cell, DecodeFigures, Distribution, PrefillFigures, Rate
from tests import records

DEFINITIONS = (Path(__file__).parents[1] / "docs" / "definitions.md").read_text(encoding="utf-8")


def inner(annotation: Any) -> Any:
    """The type behind `X | None`."""
    if isinstance(annotation, types.UnionType):
        return next(kind for kind in get_args(annotation) if kind is not type(None))
    return annotation


def test_every_path_lies_in_the_record() -> None:
    for metric in METRICS:
        for path in metric.at.values():
            model: Any = Cell
            for part in str(path).split(".") if isinstance(path, str) else ():
                assert issubclass(model, BaseModel) and part in model.model_fields, f"{metric.name}: {path}"
                model = inner(model.model_fields[part].annotation)


def test_every_number_of_the_record_is_in_the_table() -> None:
    paths = {path for metric in METRICS for path in metric.at.values()}
    for phase, model in (("prefill", PrefillFigures), ("decode", DecodeFigures), ("burst", BurstFigures)):
        for name, field in model.model_fields.items():
            kind = inner(field.annotation)
            if kind is Distribution:
                assert {f"{phase}.{name}.{part}" for part in PARTS} <= paths
            elif kind is Rate:
                assert f"{phase}.{name}.value" in paths
            elif kind in (int, float):
                assert f"{phase}.{name}" in paths or name == "completed"


def test_every_definition_stands_in_the_docs() -> None:
    for metric in METRICS:
        assert metric.definition in DEFINITIONS, metric.name
        assert metric.name in DEFINITIONS or metric.key.split(".")[0] in DEFINITIONS, metric.name


def test_names_are_of_one_figure() -> None:
    assert len({m.name for m in METRICS}) == len({m.key for m in METRICS}) == len(METRICS)
    for by_phase in metrics.columns().values():
        assert len({m.kind for m in by_phase.values()}) == 1
    assert BY_NAME["itl_ms.p99"] is BY_NAME["itl_ms_p99"] and BY_NAME["itl_ms"].better == "less"
    assert {phase: metric.name for phase, metric in SPEED.items()} == {
        "prefill": "prefill_tok_s", "decode": "total_tok_s", "burst": "end_to_end_tok_s",
    }  # fmt: skip


def test_a_figure_with_its_interval_or_the_reason_without() -> None:
    cell = records.decode("8K", 8192, 8, 100.0)
    assert cell.decode is not None
    cell.decode.total_tok_s = Rate(value=100.0, low=97.0, high=101.0)
    cell.decode.itl_ms = Distribution(p50=3.0, reasons={"p99": "too few samples", "interval": "it drifted"})
    total = read(cell, SPEED["decode"])
    assert (total.value, total.low, total.high, total.half) == (100.0, 97.0, 101.0, pytest.approx(0.03))
    itl, p99 = read(cell, BY_NAME["itl_ms"]), read(cell, BY_NAME["itl_ms.p99"])
    assert (itl.value, itl.half, itl.interval_reason) == (3.0, None, "it drifted")
    assert (p99.value, p99.reason) == (None, "too few samples")
    assert read(cell, SPEED["prefill"]).reason == "a decode cell has none"
    cell.decode.reasons["connect_ms"] = "one connection served all"
    assert read(cell, BY_NAME["connect_ms"]).reason == "one connection served all"
    cell.status, cell.reason = "no_steady_state", "the queue grew"
    assert (read(cell, SPEED["decode"]).value, read(cell, SPEED["decode"]).reason) == (None, "the queue grew")
