"""Truth: flatout's figures against the rig's own log of what it really sent, in the same run.

Limits are those of the issue: total tok/s within 0.3 %, TTFT p50 within 1 ms, ITL p50 within 1 %.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.rigged import measure, rig, suite, total_is_the_logs

SPEEDS = {1: 400, 16: 200, 64: 100}
"""tok/s of one stream by how many run."""


@pytest.mark.parametrize("tokens_per_event", [1, 4])
def test_figures_are_those_of_the_rigs_log(tmp_path: Path, tokens_per_event: int) -> None:
    knobs = {"dialect": "vllm", "decode_table": SPEEDS, "tokens_per_event": tokens_per_event, "report_cached": True}
    with rig(knobs) as server:
        test = suite(concurrency=tuple(SPEEDS), time_s=3.0, min_time_s=3.0, max_output=200)
        run = measure(server, tmp_path, suite=test, load_cores=(1,))
    truth = run.truth
    for streams in SPEEDS:
        cell = run.cell(f"d/256/{streams}")
        assert cell.decode is not None and cell.tokens is not None and cell.window is not None, cell
        t_open, t_close = cell.window.open_ns, cell.window.close_ns
        assert total_is_the_logs(run, cell.id, within=0.003)
        assert cell.tokens.source == "running counts"

        theirs = truth.ttft_ms()
        inside = (truth.first_ns >= t_open) & (truth.first_ns < t_close)
        if cell.decode.ttft_ms.whose == "the launch's own requests":
            samples = run.samples(cell.id)
            own = {rid for rid, number in zip(samples.request_ids, samples.round, strict=True) if number == 0}
            inside = np.array([rid in own for rid in truth.rid])
        assert cell.decode.ttft_ms.p50 == pytest.approx(float(np.median(theirs[inside])), abs=1.0)
        assert cell.decode.itl_ms.p50 == pytest.approx(float(np.median(truth.itl_ms(t_open, t_close))), rel=0.01)
