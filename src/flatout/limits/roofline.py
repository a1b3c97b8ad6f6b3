"""The fastest that a model can run on a machine: bytes and FLOPs of one step against bandwidth and peak.

The roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): a step takes at least as long as the slower of reading
its bytes and doing its FLOPs. One decode step reads every weight that is used once, and each sequence's own cache or
state; it makes one token a sequence, or as many as speculative decoding accepts. Left out, so that the limit is never
too low: the draft model, activations, communication between GPUs, launch times, sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from flatout.limits.hardware import HardwareLimits
from flatout.limits.shape import FeedForward, ModelShape

Binding = Literal["weights", "kv", "compute"]
FLOPS_A_PARAM: Final = 2.0
"""One multiplication and one addition for each weight and token (Kaplan et al., arXiv 2001.08361, section 2.1)."""


@dataclass(frozen=True, slots=True)
class CellLimit:
    """The limit of one cell. Bytes and FLOPs are those of one step over all GPUs; `kv_bytes` holds the cache by kind of
    attention, the linear layers' state apart in `state_bytes`. `step_s`: the least time of a step. `by_compute_s`: the
    part of it that the FLOPs need; None where the hardware's peak is not known. Prefill: one cold prompt of the cell's
    context, alone; None without a context, or where nothing bounds it."""

    decode_tok_s: float
    per_request_tok_s: float
    binding: Binding
    step_s: float
    bytes_per_step: float
    weight_bytes: float
    kv_bytes: float
    state_bytes: float
    flops_per_step: float
    by_memory_s: float
    by_compute_s: float | None
    tokens_per_step: float
    prefill_tok_s: float | None
    prefill_ttft_ms: float | None
    prefill_binding: Binding | None
    kv_bytes_by_kind: dict[str, float]


@dataclass(frozen=True, slots=True)
class Load:
    """What a step has to do. `depth_tokens`: context a sequence has, its output so far included. `shared_tokens`: how
    much of it is the same in all sequences and need be read only once. `checked_tokens`: positions of a sequence that
    one step computes (1, or the draft's length + 1). `even_routing`: distinct experts as even routing has them, else
    the fewest possible. `replicated`: caches that tensor parallel cannot split are read by every GPU."""

    streams: float
    depth_tokens: float
    shared_tokens: float = 0.0
    checked_tokens: float = 1.0
    even_routing: bool = True
    replicated: bool = True


def distinct_experts(experts: int, active: int, tokens: float) -> float:
    """Distinct experts that `tokens` tokens use in one layer, on average, where each picks `active` of `experts`
    evenly and independently: E · (1 − (1 − k/E)^T). One token uses k. Real routing repeats itself, and uses fewer."""
    if experts == 0 or tokens <= 0:
        return 0.0
    share = active / experts
    if share >= 1:
        return float(experts)
    return max(float(active), experts * -math.expm1(tokens * math.log1p(-share)))


def limit(
    shape: ModelShape,
    hardware: HardwareLimits,
    context_tokens: int,
    concurrency: float,
    *,
    mean_depth: float | None = None,
    acceptance_length: float | None = None,
    draft_tokens: int | None = None,
    tensor_parallel: int = 1,
    kv_bytes: float | None = None,
    shared_context: bool = False,
) -> CellLimit:
    """The limit of `concurrency` streams on prompts of `context_tokens`.

    `mean_depth`: mean of context and output so far, in tokens; the context alone where it is not known (then the limit
    is a little high). `acceptance_length`: tokens a sequence and step with speculative decoding; None: 1.
    `draft_tokens`: drafted a step, for the FLOPs of checking them; None: as few as the acceptance length needs.
    `kv_bytes`: of one element of the cache (1 for an FP8 cache); None: the model's type. `shared_context`: the streams
    share one context, which need be read only once a step. Raises ValueError for what is not above 0.
    """
    depth = float(context_tokens) if mean_depth is None else mean_depth
    accepted = 1.0 if acceptance_length is None else acceptance_length
    if concurrency <= 0 or context_tokens < 0 or depth < 0 or tensor_parallel < 1 or accepted < 1:
        raise ValueError("concurrency, tensor parallel and acceptance length must be at least 1, and no length below 0")
    element = shape.kv_element_bytes if kv_bytes is None else kv_bytes
    if element <= 0:
        raise ValueError(f"bytes of a KV element must be above 0, not {kv_bytes}")
    load = Load(
        streams=float(concurrency), depth_tokens=depth,
        shared_tokens=min(float(context_tokens), depth) if shared_context and concurrency > 1 else 0.0,
        checked_tokens=accepted if draft_tokens is None else max(accepted, draft_tokens + 1.0),
    )  # fmt: skip
    return solve(shape, hardware, load, context_tokens, accepted, tensor_parallel, element)


def solve(
    shape: ModelShape,
    hardware: HardwareLimits,
    load: Load,
    context_tokens: int,
    accepted: float,
    tensor_parallel: int,
    kv_element_bytes: float,
    *,
    spared_bytes: float = 0.0,
    state_bytes_each: float | None = None,
) -> CellLimit:
    """`limit` for a load given in full. `spared_bytes`: weights that may stay in a cache on the chip."""
    weights = max(0.0, weight_bytes_read(shape, load.streams * load.checked_tokens, load.even_routing) - spared_bytes)
    by_kind = kv_bytes_read(shape, load, kv_element_bytes, tensor_parallel)
    kv = sum(by_kind.values())
    state = load.streams * state_bytes_moved(shape, state_bytes_each)
    matrix, pairs = flops(shape, load)
    memory_s = (weights + kv + state) / (hardware.bytes_per_s * tensor_parallel)
    compute_s = _compute_s(shape, hardware, matrix, pairs, kv_element_bytes, tensor_parallel)
    step_s = max(memory_s, compute_s or 0.0)
    binding: Binding = "weights" if weights >= kv + state else "kv"
    if compute_s is not None and compute_s > memory_s:
        binding = "compute"
    rate = accepted / step_s if step_s > 0 else math.inf
    prefill_s, prefill_binding = _prefill(shape, hardware, context_tokens, tensor_parallel, kv_element_bytes)
    return CellLimit(
        decode_tok_s=rate * load.streams, per_request_tok_s=rate, binding=binding, step_s=step_s,
        bytes_per_step=weights + kv + state, weight_bytes=weights, kv_bytes=kv, state_bytes=state,
        flops_per_step=matrix + pairs, by_memory_s=memory_s, by_compute_s=compute_s, tokens_per_step=accepted,
        prefill_tok_s=context_tokens / prefill_s if prefill_s else None,
        prefill_ttft_ms=prefill_s * 1e3 if prefill_s else None, prefill_binding=prefill_binding,
        kv_bytes_by_kind=by_kind,
    )  # fmt: skip


def weight_bytes_read(shape: ModelShape, tokens: float, even_routing: bool = True) -> float:
    """Weights that a step over so many tokens reads, each once: everything but experts that no token picks, and but
    the input embedding, of which a row a token is read."""
    total = shape.head.bytes
    for layer in shape.layers:
        ff = layer.feed_forward
        total += layer.count * (layer.mixer.weights.bytes + ff.dense.bytes + _expert_bytes(ff, tokens, even_routing))
    return total


def _expert_bytes(ff: FeedForward, tokens: float, even_routing: bool) -> float:
    used = distinct_experts(ff.experts, ff.active, tokens) if even_routing else float(ff.active)
    return used * ff.expert.bytes


def kv_bytes_read(shape: ModelShape, load: Load, element_bytes: float, tensor_parallel: int = 1) -> dict[str, float]:
    """KV cache that a step reads, by kind of attention: what each sequence looks at, a shared context once. With more
    GPUs than KV heads, each head (and a latent cache, which has one) is read by several of them."""
    found: dict[str, float] = {}
    for layer in shape.layers:
        mixer = layer.mixer
        if not mixer.kv_elements:
            continue
        own = load.depth_tokens - load.shared_tokens
        seen = mixer.seen(load.depth_tokens)
        tokens = load.streams * min(seen, own) + max(0.0, seen - own)
        copies = max(1.0, tensor_parallel / mixer.kv_heads) if load.replicated else 1.0
        amount = layer.count * mixer.kv_elements * element_bytes * tokens * copies
        found[mixer.kind] = found.get(mixer.kind, 0.0) + amount
    return found


def state_bytes_moved(shape: ModelShape, each: float | None = None) -> float:
    """Linear layers' state of one sequence, read and written back in a step. `each`: bytes of an element by hand."""
    total = 0.0
    for layer in shape.layers:
        mixer = layer.mixer
        state = mixer.state_elements * (mixer.state_bytes if each is None else each)
        total += layer.count * 2.0 * (state + mixer.conv_elements * 2.0)
    return total


def flops(shape: ModelShape, load: Load) -> tuple[float, float]:
    """(matrix products, attention) of one step: 2 FLOPs for each active parameter and token, and each token's own pairs
    with its context."""
    tokens = load.streams * load.checked_tokens
    matrix = FLOPS_A_PARAM * shape.active_params * tokens
    pairs = 0.0
    for layer in shape.layers:
        mixer = layer.mixer
        pairs += layer.count * tokens * (mixer.flops_per_pair * mixer.seen(load.depth_tokens) + mixer.flops_per_token)
    return matrix, pairs


def prefill_flops(shape: ModelShape, context_tokens: int) -> tuple[float, float]:
    """(matrix products, attention) of reading a prompt: every token through every active parameter but the head, which
    only the last one needs; attention over the causal half, or the window's band."""
    length = float(context_tokens)
    matrix = FLOPS_A_PARAM * ((shape.active_params - shape.head.params) * length + shape.head.params)
    pairs = 0.0
    for layer in shape.layers:
        mixer = layer.mixer
        band = length if mixer.window is None else min(length, float(mixer.window))
        seen = band * (length - band) + band * (band + 1) / 2
        pairs += layer.count * (mixer.prefill_flops_per_pair * seen + mixer.flops_per_token * length)
    return matrix, pairs


def _prefill(
    shape: ModelShape, hardware: HardwareLimits, context_tokens: int, tensor_parallel: int, kv_element_bytes: float
) -> tuple[float | None, Binding | None]:
    """(least seconds for a prompt, what bounds it); nothing without a peak: reading the weights alone bounds nothing
    of worth for long prompts."""
    if context_tokens < 1:
        return None, None
    matrix, pairs = prefill_flops(shape, context_tokens)
    compute_s = _compute_s(shape, hardware, matrix, pairs, kv_element_bytes, tensor_parallel)
    if compute_s is None:
        return None, None
    memory_s = weight_bytes_read(shape, context_tokens) / (hardware.bytes_per_s * tensor_parallel)
    return (compute_s, "compute") if compute_s >= memory_s else (memory_s, "weights")


def _compute_s(
    shape: ModelShape, hardware: HardwareLimits, matrix: float, pairs: float, kv_element_bytes: float, gpus: int
) -> float | None:
    """Seconds for the FLOPs: matrix products at the weights' precision, attention at 16 bits (8 for an 8-bit cache)."""
    peak = hardware.peak_flops(shape.compute)
    attention_peak = hardware.peak_flops("fp8" if kv_element_bytes <= 1 else "bf16")
    if peak is None or attention_peak is None:
        return None
    return (matrix / peak + pairs / attention_peak) / gpus
