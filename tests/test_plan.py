"""The plan: what fits, what does not, in which order, and that nothing vanishes (faults S1, S2)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flatout.plan import Limits, estimate, need, plan, resolve, within
from flatout.suite import SUITES

FULL = SUITES["full"]
SEED_SERVER = Limits(model_length=262144, kv_tokens=1_100_000, max_running=32)


def test_max_and_full_are_as_defined() -> None:
    limits = Limits(model_length=262144)
    assert resolve("max", limits, 4096) == (262144 - 4096 - 64) // 1024 * 1024 == 257024
    assert resolve("full", limits, 4096) == 262080
    assert resolve("max", Limits(), 4096) is None
    assert resolve("max", Limits(model_length=1000), 4096) is None


def test_need_of_own_and_shared_contexts() -> None:
    assert need(8192, 4, 512, shared=False) == 4 * (8192 + 512)
    assert need(8192, 4, 512, shared=True) == 8192 + 4 * 512


def test_s1_every_cell_has_its_place_with_status_and_reason() -> None:
    cells = plan(FULL, SEED_SERVER)
    assert len([c for c in cells if c.phase == "prefill"]) == 7
    assert len([c for c in cells if c.phase == "decode"]) == 6 * 8
    for cell in cells:
        assert (cell.verdict == "measure") == (cell.reason is None)
    assert len({c.id for c in cells}) == len(cells)


def test_the_order_of_verdicts_is_length_then_capacity_then_queue() -> None:
    by_id = {c.id: c for c in plan(FULL, SEED_SERVER)}
    assert by_id["d/8192/64"].verdict == "measure" and by_id["d/8192/64"].will_queue
    assert by_id["d/8192/128"].verdict == "over_capacity"
    assert by_id["d/131072/16"].verdict == "over_capacity"
    long = plan(replace(FULL, decode=(262144,), prefill=()), SEED_SERVER)
    assert {c.verdict for c in long} == {"over_length"}  # although it would be over capacity, too
    skipping = {c.id: c for c in plan(replace(FULL, skip_queued=True), SEED_SERVER)}
    assert skipping["d/8192/64"].verdict == "not_run"


def test_s2_beyond_the_models_length_is_known_beforehand() -> None:
    cells = plan(SUITES["standard"], Limits(model_length=4096, kv_tokens=16384))
    assert {c.verdict for c in cells if c.context_tokens == 8192} == {"over_length"}
    assert all("4,096" in (c.reason or "") for c in cells if c.context_tokens == 8192)


def test_unknown_limits_let_everything_run_but_what_needs_them() -> None:
    cells = plan(FULL, Limits())
    assert {c.verdict for c in cells if isinstance(c.context, int)} == {"measure"}
    assert all(c.verdict == "not_run" and "--model-len" in (c.reason or "") for c in cells if c.context == "max")


def test_max_that_equals_a_listed_context_is_not_planned_twice() -> None:
    cells = plan(replace(FULL, decode=(8192, "max"), prefill=(8192, "max")), Limits(model_length=8192 + 4096 + 64))
    assert [c.id for c in cells].count("d/8192/1") == 1


def test_a_limit_for_this_run_leaves_cells_out_with_the_reason() -> None:
    cells = plan(FULL, SEED_SERVER, max_concurrency=4)
    assert all(c.verdict != "measure" for c in cells if c.concurrency > 4)


contexts = st.lists(st.one_of(st.integers(1, 300_000), st.sampled_from(["max", "full"])), min_size=1, max_size=6)


@given(
    contexts, st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True),
    st.one_of(st.none(), st.integers(1, 300_000)), st.one_of(st.none(), st.integers(1, 2_000_000)), st.booleans(),
)  # fmt: skip
def test_a_plan_is_whole_and_true(ctx: list, at_once: list, length: int | None, kv: int | None, shared: bool) -> None:
    suite = replace(
        FULL, prefill=tuple(dict.fromkeys(ctx)), decode=tuple(dict.fromkeys(ctx)), concurrency=tuple(sorted(at_once)),
        prompts="shared" if shared else "own",
    )  # fmt: skip
    limits = Limits(length, kv, 16)
    cells = plan(suite, limits)
    for cell in cells:
        if cell.verdict == "measure":
            assert cell.context_tokens is not None and cell.need_tokens is not None
            assert kv is None or cell.need_tokens <= kv
            assert length is None or cell.context_tokens + cell.max_output <= length
        if cell.verdict == "over_capacity":
            assert kv is not None and cell.need_tokens is not None and cell.need_tokens > kv
    known = [c.context_tokens for c in cells if c.context_tokens is not None]
    assert known == sorted(known)
    made = estimate(cells, suite)
    assert made.cells == len(cells) and made.measured == sum(c.verdict == "measure" for c in cells)


def test_more_connections_than_this_machine_may_open_are_not_tried() -> None:
    cells = plan(FULL, Limits(model_length=262144, max_running=2))
    assert within(cells, None) == cells == within(cells, max(FULL.concurrency))
    most = within(cells, 4)
    for before, after in zip(cells, most, strict=True):
        changed = before.verdict == "measure" and before.concurrency > 4
        assert (after != before) == changed
        if changed:
            assert (after.verdict, after.will_queue, after.need_tokens) == ("not_run", False, before.need_tokens)
            assert after.reason is not None and f"4 simultaneous requests, not {before.concurrency}" in after.reason
    assert max(cell.concurrency for cell in most if cell.verdict == "measure") == 4
