"""What a model is made of, as far as its speed depends on it: weights, KV cache, state and FLOPs by kind of layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["full", "sliding", "latent", "linear"]
Precision = Literal["bf16", "fp8", "int8", "fp4"]
MOST_LAYERS: Final = 2000
MOST_SIZE: Final = 10**9
"""No dimension of a model is larger; a file that says so is damaged or hostile."""


class ShapeError(ValueError):
    """The model's shape cannot be read from the file; `str()` says what is wrong and what to do instead."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One part of the model: how many parameters, and the bytes they take in memory with their scales."""

    params: int
    bytes: float

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.params + other.params, self.bytes + other.bytes)


NONE: Final = Weights(0, 0.0)


@dataclass(frozen=True, slots=True)
class Mixer:
    """The part of one layer that looks at other tokens, in one of four kinds.

    `kv_elements`: elements that one token of context keeps in this layer's KV cache (full and sliding attention:
    KV heads × (key + value dimension); latent attention: rank + rotary part; linear: 0). `kv_heads`: over how many
    GPUs they can be split. `window`: the most tokens of context that a sliding layer reads. `state_elements`,
    `conv_elements`: a linear layer's recurrent state of one sequence, whatever its length. `flops_per_pair`: for one
    new token and one token of context it looks at; `prefill_flops_per_pair`: the same while a prompt is read.
    `flops_per_token`: the state's update.
    """

    kind: Kind
    weights: Weights
    kv_elements: int = 0
    kv_heads: int = 1
    window: int | None = None
    state_elements: int = 0
    conv_elements: int = 0
    state_bytes: float = 2.0
    flops_per_pair: float = 0.0
    prefill_flops_per_pair: float = 0.0
    flops_per_token: float = 0.0

    def seen(self, depth: float) -> float:
        """Tokens of context that a new token at `depth` looks at."""
        if self.kind == "linear":
            return 0.0
        return depth if self.window is None else min(depth, float(self.window))


@dataclass(frozen=True, slots=True)
class FeedForward:
    """One layer's feed-forward part: what every token uses (dense, shared experts, router), and the routed experts."""

    dense: Weights = NONE
    experts: int = 0
    active: int = 0
    expert: Weights = NONE


@dataclass(frozen=True, slots=True)
class Layer:
    """`count` layers of one make."""

    count: int
    mixer: Mixer
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as the roofline sees it.

    `head`: the matrix to the vocabulary, read in every step. `embedding`: the other table where it is not the same
    one; only a row a token is read. `kv_element_bytes`: of the cache as the model's own type has it. `compute`: the
    precision of the matrix products. `notes`: what was assumed while reading.
    """

    name: str
    layers: tuple[Layer, ...]
    head: Weights
    embedding: Weights
    kv_element_bytes: float
    compute: Precision
    quantization: str
    max_context: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def layer_count(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def params(self) -> int:
        """All parameters of the text model (norms, biases, vision and multi-token-prediction parts apart)."""
        total = self.head.params + self.embedding.params
        for layer in self.layers:
            ff = layer.feed_forward
            total += layer.count * (layer.mixer.weights.params + ff.dense.params + ff.experts * ff.expert.params)
        return total

    @property
    def active_params(self) -> int:
        """Parameters that one token uses: active experts only; the embedding's row is not counted."""
        total = self.head.params
        for layer in self.layers:
            ff = layer.feed_forward
            total += layer.count * (layer.mixer.weights.params + ff.dense.params + ff.active * ff.expert.params)
        return total

    @property
    def weight_bytes(self) -> float:
        """All weights in memory."""
        total = self.head.bytes + self.embedding.bytes
        for layer in self.layers:
            ff = layer.feed_forward
            total += layer.count * (layer.mixer.weights.bytes + ff.dense.bytes + ff.experts * ff.expert.bytes)
        return total

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache that one more token of context takes at the model's own type, before any window is full."""
        elements = sum(layer.count * layer.mixer.kv_elements for layer in self.layers)
        return elements * self.kv_element_bytes

    @property
    def state_bytes_per_sequence(self) -> float:
        """Recurrent and convolution state of one sequence in the linear layers."""
        return sum(
            layer.count * (layer.mixer.state_elements * layer.mixer.state_bytes + layer.mixer.conv_elements * 2.0)
            for layer in self.layers
        )

    @property
    def is_moe(self) -> bool:
        return any(layer.feed_forward.experts for layer in self.layers)

    def kinds(self) -> dict[Kind, int]:
        """Number of layers by kind."""
        found: dict[Kind, int] = {}
        for layer in self.layers:
            found[layer.mixer.kind] = found.get(layer.mixer.kind, 0) + layer.count
        return found


def grouped(layers: Iterator[tuple[Mixer, FeedForward]]) -> tuple[Layer, ...]:
    """Layers of the same make together, in the order of their first."""
    counts: dict[tuple[Mixer, FeedForward], int] = {}
    for pair in layers:
        counts[pair] = counts.get(pair, 0) + 1
    return tuple(Layer(count, mixer, ff) for (mixer, ff), count in counts.items())


def attention(
    weights: Weights, *, heads: int, kv_heads: int, key_dim: int, value_dim: int, window: int | None = None
) -> Mixer:
    """Softmax attention with grouped KV heads. FLOPs for a pair of tokens: 2 · heads · key_dim for the score and
    2 · heads · value_dim for the sum of values (Dao et al., "FlashAttention-2", 2023, section 4.1: 4·L²·d·heads)."""
    pair = 2.0 * heads * (key_dim + value_dim)
    return Mixer(
        "full" if window is None else "sliding", weights, kv_elements=kv_heads * (key_dim + value_dim),
        kv_heads=kv_heads, window=window, flops_per_pair=pair, prefill_flops_per_pair=pair,
    )  # fmt: skip


def latent_attention(weights: Weights, *, heads: int, rank: int, rope_dim: int, nope_dim: int, value_dim: int) -> Mixer:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): one latent vector of `rank` and one
    rotary key of `rope_dim` a token, for all heads. Decoding works on the latent itself (the up-projections absorbed
    into the query and the output): 2 · heads · ((rank + rope) + rank) FLOPs a pair; a prompt is read with full keys and
    values: 2 · heads · (nope + rope + value)."""
    return Mixer(
        "latent", weights, kv_elements=rank + rope_dim, kv_heads=1,
        flops_per_pair=2.0 * heads * (2 * rank + rope_dim),
        prefill_flops_per_pair=2.0 * heads * (nope_dim + rope_dim + value_dim),
    )  # fmt: skip


def linear_attention(
    weights: Weights, *, heads: int, key_dim: int, value_dim: int, conv_elements: int, state_bytes: float
) -> Mixer:
    """A recurrent state of heads × key_dim × value_dim instead of a KV cache (Yang et al., "Gated Delta Networks",
    arXiv 2412.06464, eq. 10; Mamba-2's state has the same form). A token costs three products with the state (read
    by key, rank-one update, read by query), 2 FLOPs an element each."""
    state = heads * key_dim * value_dim
    return Mixer(
        "linear", weights, kv_heads=heads, state_elements=state, conv_elements=conv_elements,
        state_bytes=state_bytes, flops_per_token=6.0 * state,
    )  # fmt: skip
