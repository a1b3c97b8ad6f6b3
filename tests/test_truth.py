"""Truth: flatout's figures against the rig's own log of what it really sent, in the same run.

Limits are those of the issue: total tok/s within 0.3 %, TTFT p50 within 1 ms, ITL p50 within 1 %.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.rigged import Run, measure, rig, suite, total_is_the_logs


def window_of(run: Run, cell_id: str) -> tuple[int, int]:
    window = run.cell(cell_id).window
    assert window is not None, run.cell(cell_id)
    return window.open_ns, window.close_ns


@pytest.mark.parametrize("tokens_per_event", [1, 4])
@pytest.mark.parametrize(("streams", "tok_s"), [(1, 400), (16, 200), (64, 100)])
def test_figures_are_those_of_the_rigs_log(tmp_path: Path, streams: int, tok_s: int, tokens_per_event: int) -> None:
    knobs = {"dialect": "vllm", "decode_tok_s": tok_s, "tokens_per_event": tokens_per_event, "report_cached": True}
    with rig(knobs) as server:
        test = suite(concurrency=(streams,), time_s=3.0, min_time_s=3.0, max_output=200)
        run = measure(server, tmp_path, suite=test, load_cores=(1,))
    cell = run.cell(f"d/256/{streams}")
    assert cell.decode is not None and cell.tokens is not None
    t_open, t_close = window_of(run, cell.id)
    truth = run.truth
    assert total_is_the_logs(run, cell.id, within=0.003)
    assert cell.tokens.source == "running counts"

    theirs = truth.ttft_ms()
    inside = (truth.first_ns >= t_open) & (truth.first_ns < t_close)
    launch = cell.decode.ttft_ms.whose == "the launch's own requests"
    chosen = theirs[truth.prompt_tokens >= 256] if launch else theirs[inside]
    assert cell.decode.ttft_ms.p50 == pytest.approx(float(np.median(chosen)), abs=1.0)
    assert cell.decode.itl_ms.p50 == pytest.approx(float(np.median(truth.itl_ms(t_open, t_close))), rel=0.01)
