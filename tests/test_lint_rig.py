"""False alarms: records of the rig, measured for real, have no finding in any cell that the record calls clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.lint import lint
from flatout.lint.sheet import of_record
from tests.rigged import measure, rig, suite


@pytest.mark.parametrize(
    "knobs",
    [
        {"dialect": "vllm", "decode_tok_s": 100, "prefill_tok_s": 20_000, "report_cached": True},
        {"dialect": "sglang", "decode_tok_s": 200, "tokens_per_event": 4, "prefill_tok_s": 20_000},
        {"dialect": "llamacpp", "decode_tok_s": 80, "max_running": 4},
    ],
)
def test_a_measured_record_has_no_finding(tmp_path: Path, knobs: dict[str, Any]) -> None:
    lengths = (256, 2048)
    test = suite(prefill=lengths, decode=lengths, concurrency=(1, 2, 4), max_output=64, time_s=2.0, min_time_s=2.0)
    with rig(knobs) as server:
        record = measure(server, tmp_path, suite=test).record
    clean = {row.name for row in of_record(record).rows if row.measured and row.status == "valid" and not row.flags}
    assert len(clean) >= 4, [(c.id, c.status, c.reason, c.flags) for c in record.cells]
    found = [one for one in lint(record) if one.cell in clean or not one.cell]
    assert found == []
