"""The roofline: figures worked out by hand, and what must hold for every shape and load."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.limits import by_hand, distinct_experts, hardware, limit, model_shape
from flatout.limits.roofline import Load, kv_bytes_read, prefill_flops, weight_bytes_read
from tests import limit_models as m

LLAMA = model_shape(m.LLAMA_8B)
SHAPES = [model_shape(c) for c in (m.LLAMA_8B, m.MIXTRAL, m.DEEPSEEK_V3, m.GPT_OSS_20B, m.GEMMA3_27B, m.QWEN35_4B)]
GPUS = [hardware("H200 NVL"), hardware("A100 40GB"), hardware("RTX 4090"), hardware("Apple M2 Ultra")]


def test_one_stream_by_hand() -> None:
    found = limit(LLAMA, by_hand(1000, 100), 8192, 1)
    layers = 32 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336)
    head = 128256 * 4096
    assert found.weight_bytes == 2 * (layers + head)
    assert found.kv_bytes == 131_072 * 8192 and found.kv_bytes_by_kind == {"full": found.kv_bytes}
    assert found.step_s == pytest.approx((found.weight_bytes + found.kv_bytes) / 1e12)
    assert found.decode_tok_s == found.per_request_tok_s == pytest.approx(1 / found.step_s)
    assert found.binding == "weights"
    assert found.flops_per_step == 2 * (layers + head) + 32 * 4 * 32 * 128 * 8192
    assert found.by_compute_s == pytest.approx(found.flops_per_step / 100e12)


def test_what_binds() -> None:
    slow, strong = by_hand(1000, 1), by_hand(1000, 10_000)
    assert limit(LLAMA, strong, 1024, 1).binding == "weights"
    assert limit(LLAMA, strong, 131_072, 64).binding == "kv"
    assert limit(LLAMA, slow, 1024, 64).binding == "compute"
    found = limit(LLAMA, slow, 1024, 64)
    assert found.step_s == found.by_compute_s
    assert limit(LLAMA, by_hand(1000), 1024, 10_000).binding == "kv"


def test_prefill_by_hand() -> None:
    matrix, pairs = prefill_flops(LLAMA, 1000)
    layers = LLAMA.active_params - LLAMA.head.params
    assert matrix == 2 * (layers * 1000 + LLAMA.head.params)
    assert pairs == 32 * 4 * 32 * 128 * (1000 * 1001 / 2)
    found = limit(LLAMA, by_hand(1000, 100), 1000, 1)
    assert found.prefill_ttft_ms == pytest.approx((matrix + pairs) / 100e12 * 1e3)
    assert found.prefill_tok_s == pytest.approx(1000 / (found.prefill_ttft_ms / 1e3))
    assert found.prefill_binding == "compute"
    assert limit(LLAMA, by_hand(1000), 1000, 1).prefill_tok_s is None
    short = limit(LLAMA, by_hand(1000, 100), 8, 1)
    assert short.prefill_binding == "weights" and short.prefill_ttft_ms == pytest.approx(short.weight_bytes / 1e9)
    gemma = model_shape(m.GEMMA3_27B)
    band = sum(min(i, 1024) for i in range(1, 5001))
    assert prefill_flops(gemma, 5000)[1] == 4 * 32 * 128 * (52 * band + 10 * (5000 * 5001 / 2))


def test_caches_by_kind() -> None:
    gemma = model_shape(m.GEMMA3_27B)
    one = 2 * 16 * 128 * 2
    assert kv_bytes_read(gemma, Load(3, 5000), 2.0) == {"sliding": 3 * 52 * one * 1024, "full": 3 * 10 * one * 5000}
    assert kv_bytes_read(gemma, Load(3, 500), 2.0) == {"sliding": 3 * 52 * one * 500, "full": 3 * 10 * one * 500}
    deepseek = model_shape(m.DEEPSEEK_V3)
    assert kv_bytes_read(deepseek, Load(1, 1000), 1.0) == {"latent": 61 * 576 * 1000}
    assert kv_bytes_read(deepseek, Load(1, 1000), 1.0, tensor_parallel=8) == {"latent": 8 * 61 * 576 * 1000}
    assert kv_bytes_read(LLAMA, Load(1, 1000), 2.0, tensor_parallel=8) == {"full": 131_072_000}
    assert kv_bytes_read(LLAMA, Load(1, 1000), 2.0, tensor_parallel=16) == {"full": 2 * 131_072_000}
    qwen = limit(model_shape(m.QWEN35_4B), by_hand(1000), 1000, 4)
    assert qwen.state_bytes == 4 * 2 * 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)


def test_a_shared_context_is_read_once() -> None:
    load = Load(4, 1100, shared_tokens=1000)
    assert kv_bytes_read(LLAMA, load, 2.0) == {"full": 131_072 * (1000 + 4 * 100)}
    # the window holds the streams' own newest tokens first
    gemma = kv_bytes_read(model_shape(m.GEMMA3_27B), Load(4, 5500, shared_tokens=5000), 2.0)
    assert gemma["sliding"] == 52 * 2 * 16 * 128 * 2 * (4 * 500 + 524)


@pytest.mark.parametrize(("experts", "active", "tokens"), [(8, 2, 3), (128, 8, 16), (32, 4, 64), (256, 8, 1)])
def test_distinct_experts_as_drawn(experts: int, active: int, tokens: int) -> None:
    drawn = random.Random(1)
    rounds = 3000
    seen = sum(
        len({e for _ in range(tokens) for e in drawn.sample(range(experts), active)}) for _ in range(rounds)
    )  # fmt: skip
    assert distinct_experts(experts, active, tokens) == pytest.approx(seen / rounds, rel=0.01)


def test_experts_in_a_batch() -> None:
    mixtral = model_shape(m.MIXTRAL)
    expert = 3 * 4096 * 14336 * 2
    one, many = weight_bytes_read(mixtral, 1), weight_bytes_read(mixtral, 10_000)
    assert many - one == pytest.approx(32 * 6 * expert)
    assert one == pytest.approx(mixtral.active_params * 2)
    assert many == pytest.approx((mixtral.params - mixtral.embedding.params) * 2)


def test_acceptance_and_tensor_parallel() -> None:
    gpu = hardware("H200 NVL")
    plain, three = limit(LLAMA, gpu, 8192, 2), limit(LLAMA, gpu, 8192, 2, acceptance_length=3.0)
    assert three.decode_tok_s == pytest.approx(3 * plain.decode_tok_s) and three.tokens_per_step == 3
    assert three.flops_per_step == pytest.approx(3 * plain.flops_per_step)
    drafted = limit(LLAMA, gpu, 8192, 2, acceptance_length=3.0, draft_tokens=7)
    assert drafted.flops_per_step == pytest.approx(8 * plain.flops_per_step)
    four = limit(LLAMA, gpu, 8192, 2, tensor_parallel=4)
    assert four.decode_tok_s == pytest.approx(4 * plain.decode_tok_s)
    assert limit(LLAMA, gpu, 8192, 2, mean_depth=8192 + 500).kv_bytes == 2 * 131_072 * 8692


BAD: list[dict[str, Any]] = [
    {"concurrency": 0}, {"context_tokens": -1}, {"mean_depth": -1.0}, {"acceptance_length": 0.5},
    {"tensor_parallel": 0}, {"kv_bytes": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_impossible_loads_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        limit(LLAMA, GPUS[0], **({"context_tokens": 1024, "concurrency": 1} | bad))


LENGTHS = st.integers(0, 300_000)
STREAMS = st.integers(1, 512)


@given(st.sampled_from(SHAPES), st.sampled_from(GPUS), LENGTHS, LENGTHS, STREAMS, STREAMS, st.floats(1, 8))
def test_more_work_is_never_faster(
    shape: Any, gpu: Any, context: int, more_context: int, streams: int, more: int, accepted: float
) -> None:
    few, many = sorted((streams, more))
    short, long = sorted((context, more_context))
    base = limit(shape, gpu, short, few, acceptance_length=accepted)
    slack = 1 + 1e-9
    assert base.decode_tok_s == pytest.approx(base.per_request_tok_s * few)
    assert limit(shape, gpu, long, few, acceptance_length=accepted).decode_tok_s <= base.decode_tok_s * slack
    crowded = limit(shape, gpu, short, many, acceptance_length=accepted)
    assert crowded.per_request_tok_s <= base.per_request_tok_s * slack
    assert crowded.decode_tok_s * slack >= base.decode_tok_s
    shared = limit(shape, gpu, short, few, acceptance_length=accepted, shared_context=True)
    assert shared.decode_tok_s * slack >= base.decode_tok_s
    narrow = limit(shape, gpu, short, few, acceptance_length=accepted, kv_bytes=shape.kv_element_bytes / 2)
    assert narrow.decode_tok_s * slack >= base.decode_tok_s
    assert base.bytes_per_step == pytest.approx(base.weight_bytes + base.kv_bytes + base.state_bytes)
    assert sum(base.kv_bytes_by_kind.values()) == base.kv_bytes
    assert base.step_s >= base.by_memory_s and base.step_s >= (base.by_compute_s or 0)


@given(st.integers(1, 512), st.data())
def test_distinct_experts_are_within_bounds(experts: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, experts))
    tokens = data.draw(st.integers(1, 10**6))
    found = distinct_experts(experts, active, tokens)
    assert active <= found <= min(experts, active * tokens) * (1 + 1e-9)
    assert distinct_experts(experts, active, tokens + 1) >= found * (1 - 1e-12)
