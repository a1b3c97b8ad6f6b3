"""A model's shape from a Hugging Face `config.json`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from flatout.limits.quant import DTYPE_BYTES, Quantization, quantization_of
from flatout.limits.shape import (
    MOST_LAYERS,
    MOST_SIZE,
    NONE,
    FeedForward,
    Mixer,
    ModelShape,
    ShapeError,
    Weights,
    attention,
    grouped,
    latent_attention,
    linear_attention,
)

_NESTED: Final = ("text_config", "llm_config", "language_config")
_PLAIN_MLP: Final = frozenset(
    {"bloom", "falcon", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "nemotron", "opt", "phi", "starcoder2"}
)
"""Model types whose feed-forward part has two matrices instead of the gated three."""
_ALTERNATE: Final[Mapping[str, int]] = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "gemma3": 6, "gemma3_text": 6}
"""Every n-th layer is global, where the config leaves the pattern to the code."""
_FULL: Final = frozenset({"full_attention", "attention", "global_attention"})
_SLIDING: Final = frozenset({"sliding_attention", "local_attention", "chunked_attention"})
_FOREIGN: Final[Mapping[str, str]] = {
    "hybrid_override_pattern": "a layer pattern in letters",
    "layers_block_type": "mixed blocks",
    "attn_layer_period": "attention every n-th layer beside Mamba",
    "block_configs": "layers that differ one by one",
    "linear_attn_config": "Kimi-type linear attention",
    "index_topk": "sparse attention with an indexer",
    "compress_ratios": "compressed attention",
}
"""Keys that change what a layer reads in ways that are not modelled: refused, for a wrong limit is worse than none."""


def shape_of_config(config: Mapping[str, Any], *, weight_bits: float | None = None) -> ModelShape:
    """The shape; `weight_bits` replaces what the config says of quantisation. Raises ShapeError."""
    text = _text_part(config)
    for key, what in _FOREIGN.items():
        if text.get(key) not in (None, [], {}, 0, False):
            raise ShapeError(f"this model has {what} ({key}), which flatout does not model; no limit is computed")
    if config.get("is_encoder_decoder"):
        raise ShapeError("this is an encoder-decoder model; limits are for decoder-only models")
    reader = _Reader(config, text, _quantization(config, text, weight_bits))
    layers = grouped(reader.layers())
    head, embedding = reader.vocabulary()
    quant = reader.quant
    return ModelShape(
        name=str(config.get("_name_or_path") or text.get("model_type") or "model")[:200],
        layers=layers, head=head, embedding=embedding, kv_element_bytes=min(reader.dtype_bytes, 2.0),
        compute=quant.compute if quant else "bf16", quantization=quant.label if quant else reader.dtype,
        max_context=reader.optional("max_position_embeddings"), notes=tuple(dict.fromkeys(reader.notes)),
    )  # fmt: skip


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            return inner
    thinker = config.get("thinker_config")
    return _text_part(thinker) if isinstance(thinker, Mapping) and thinker else config


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any], weight_bits: float | None) -> Quantization | None:
    if weight_bits is not None:
        if not math.isfinite(weight_bits) or not 0.5 <= weight_bits <= 64:
            raise ShapeError(f"--weight-bits is {weight_bits:g}; give the bits of one weight, for example 4.5")
        return Quantization(f"{weight_bits:g}-bit (as typed)", weight_bits, "bf16")
    found = config.get("quantization_config") or text.get("quantization_config") or config.get("quantization")
    return quantization_of(found)


class _Reader:
    """One config while it is read: sizes are checked as they are taken, and what had to be assumed is noted."""

    def __init__(self, config: Mapping[str, Any], text: Mapping[str, Any], quant: Quantization | None) -> None:
        self.config, self.text, self.quant = config, text, quant
        self.notes: list[str] = list(quant.notes) if quant else []
        self.type = str(text.get("model_type") or config.get("model_type") or "").lower()
        self.dtype = self._dtype()
        self.dtype_bytes = DTYPE_BYTES[self.dtype]
        self.hidden = self.size("hidden_size", "n_embd", "d_model")
        self.count = self.size("num_hidden_layers", "n_layer", "num_layers", most=MOST_LAYERS)

    def _dtype(self) -> str:
        for part in (self.text, self.config):
            value = part.get("dtype") or part.get("torch_dtype")
            if isinstance(value, str):
                name = value.removeprefix("torch.").lower()
                if name not in DTYPE_BYTES:
                    raise ShapeError(f"the config's dtype {value[:40]!r} is not known")
                return name
        self.notes.append("the config names no dtype; 16 bits are taken")
        return "bfloat16"

    def optional(self, *names: str, most: int = MOST_SIZE) -> int | None:
        for name in names:
            value = self.text.get(name)
            if value is None:
                continue
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if isinstance(value, bool) or not whole:
                raise ShapeError(f"the config's {name} is {str(value)[:60]!r}, not a whole number")
            if not 0 <= value <= most:
                raise ShapeError(f"the config's {name} is {value}; that cannot be a size (0 to {most:,})")
            return int(value)
        return None

    def size(self, *names: str, most: int = MOST_SIZE) -> int:
        value = self.optional(*names, most=most)
        if value is None:
            raise ShapeError(f"the config has no {names[0]}: is it the config.json of a language model?")
        if value < 1:
            raise ShapeError(f"the config's {names[0]} is {value}; it must be at least 1")
        return value

    def weights(self, params: int, *modules: str, expert: bool = False) -> Weights:
        """A matrix with the bits that its modules have."""
        quant = self.quant
        bits = self.dtype_bytes * 8
        if quant is not None and not (quant.experts_only and not expert) and not quant.skips(*modules):
            bits = quant.bits
        return Weights(params, params * bits / 8)

    def layers(self) -> Iterator[tuple[Mixer, FeedForward]]:
        kinds = self.kinds()
        for index, kind in enumerate(kinds):
            yield self.mixer(index, kind), self.feed_forward(index)

    def kinds(self) -> list[str]:
        """`full`, `sliding` or `linear` for every layer."""
        listed = self.text.get("layer_types")
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            if len(listed) < self.count:
                raise ShapeError(f"layer_types names {len(listed)} layers of {self.count}; the config is damaged")
            return [self._kind(str(kind)) for kind in listed[: self.count]]
        interval = self.optional("full_attention_interval", most=MOST_LAYERS)
        if interval:
            return ["linear" if (i + 1) % interval else "full" for i in range(self.count)]
        if self._window() is None:
            return ["full"] * self.count
        pattern = self.optional("sliding_window_pattern", "_sliding_window_pattern", most=MOST_LAYERS)
        pattern = pattern or _ALTERNATE.get(self.type)
        if pattern:
            return ["sliding" if (i + 1) % pattern else "full" for i in range(self.count)]
        return ["sliding"] * self.count

    def _kind(self, word: str) -> str:
        if word in _FULL:
            return "full"
        if word in _SLIDING:
            return "sliding" if self._window(required=True) is not None else "full"
        if word == "linear_attention":
            return "linear"
        raise ShapeError(f"the config has layers of the kind {word[:60]!r}, which flatout does not model")

    def _window(self, *, required: bool = False) -> int | None:
        if self.text.get("use_sliding_window") is False and not required:
            return None
        return self.optional("sliding_window", "attention_chunk_size") or None

    def mixer(self, index: int, kind: str) -> Mixer:
        if kind == "linear":
            return self._linear(index)
        if self.optional("kv_lora_rank"):
            return self._latent(index)
        return self._attention(index, self._window(required=True) if kind == "sliding" else None)

    def _attention(self, index: int, window: int | None) -> Mixer:
        heads = self.size("num_attention_heads", "n_head", "num_heads")
        kv_heads = self.optional("num_key_value_heads", "num_kv_heads") or heads
        head_dim = self.optional("head_dim") or self.hidden // heads
        if window is None and self.optional("global_head_dim"):
            head_dim = self.size("global_head_dim")
            kv_heads = self.optional("num_global_key_value_heads") or kv_heads
        value_dim = self.optional("v_head_dim") or head_dim
        gated = self.text.get("attn_output_gate", self.type.startswith(("qwen3_next", "qwen3_5")))
        query = heads * head_dim * (2 if gated else 1)
        params = self.hidden * (query + kv_heads * (head_dim + value_dim) + heads * value_dim)
        weights = self.weights(params, f"layers.{index}.self_attn.q_proj", f"layers.{index}.attn.q_proj")
        return attention(
            weights, heads=heads, kv_heads=kv_heads, key_dim=head_dim, value_dim=value_dim, window=window
        )  # fmt: skip

    def _latent(self, index: int) -> Mixer:
        heads, rank = self.size("num_attention_heads"), self.size("kv_lora_rank")
        nope, rope, value = self.size("qk_nope_head_dim"), self.size("qk_rope_head_dim"), self.size("v_head_dim")
        query_rank = self.optional("q_lora_rank")
        per_head = heads * (nope + rope)
        query = query_rank * (self.hidden + per_head) if query_rank else self.hidden * per_head
        params = query + self.hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * self.hidden
        weights = self.weights(params, f"layers.{index}.self_attn.kv_b_proj", f"layers.{index}.self_attn.o_proj")
        return latent_attention(weights, heads=heads, rank=rank, rope_dim=rope, nope_dim=nope, value_dim=value)

    def _linear(self, index: int) -> Mixer:
        """Gated DeltaNet as in Qwen3-Next and Qwen3.5 (their modelling code in Hugging Face transformers)."""
        key_heads, value_heads = self.size("linear_num_key_heads"), self.size("linear_num_value_heads")
        key_dim, value_dim = self.size("linear_key_head_dim"), self.size("linear_value_head_dim")
        kernel = self.size("linear_conv_kernel_dim", most=4096)
        keys, values = key_heads * key_dim, value_heads * value_dim
        channels = 2 * keys + values
        params = self.hidden * (channels + values + 2 * value_heads) + channels * kernel + values * self.hidden
        weights = self.weights(
            params, f"layers.{index}.linear_attn.in_proj_qkvz", f"layers.{index}.linear_attn.in_proj_qkv"
        )
        state_type = str(self.text.get("mamba_ssm_dtype") or self.dtype)
        return linear_attention(
            weights, heads=value_heads, key_dim=key_dim, value_dim=value_dim,
            conv_elements=channels * (kernel - 1), state_bytes=DTYPE_BYTES.get(state_type, 2.0),
        )  # fmt: skip

    def feed_forward(self, index: int) -> FeedForward:
        experts = self.optional("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 0
        if experts and self._is_moe_layer(index):
            return self._experts(index, experts)
        width = self.size("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim")
        return FeedForward(self._mlp(width, f"layers.{index}.mlp.up_proj", f"layers.{index}.mlp.down_proj"))

    def _mlp(self, width: int, *modules: str, expert: bool = False) -> Weights:
        matrices = 2 if self.type in _PLAIN_MLP or str(self.text.get("hidden_act")) == "relu2" else 3
        return self.weights(matrices * self.hidden * width, *modules, expert=expert)

    def _is_moe_layer(self, index: int) -> bool:
        if index < (self.optional("first_k_dense_replace", "moe_layer_start_index") or 0):
            return False
        dense_only = self.text.get("mlp_only_layers")
        if isinstance(dense_only, Sequence) and not isinstance(dense_only, str) and index in dense_only:
            return False
        listed = self.text.get("moe_layers")
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            return index in listed
        step = self.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
        if step > 1:
            return (index + 1) % step == 0
        return index % (self.optional("moe_layer_freq") or 1) == 0

    def _experts(self, index: int, experts: int) -> FeedForward:
        active = self.size("num_experts_per_tok", "experts_per_token", "moe_topk", "top_k_experts", "moe_k")
        if active > experts:
            raise ShapeError(f"the config has {active} active experts of {experts}; it is damaged")
        width = self.size("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
        base = f"layers.{index}.mlp"
        names = (f"{base}.experts.0.up_proj", f"layers.{index}.block_sparse_moe.experts.0.w1")
        expert = self._mlp(width, *names, expert=True)
        router = Weights(self.hidden * experts, self.hidden * experts * self.dtype_bytes)
        shared = self.optional("shared_expert_intermediate_size") or 0
        if not shared:
            shared = (self.optional("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0) * width
        if self.type.startswith("llama4"):
            shared = width
        if self.text.get("enable_moe_block") is True:  # Gemma 4: a dense part beside the experts
            shared = self.size("intermediate_size")
        dense = self._mlp(shared, f"{base}.shared_expert.up_proj", f"{base}.shared_experts.up_proj") if shared else NONE
        return FeedForward(dense + router, experts, active, expert)

    def vocabulary(self) -> tuple[Weights, Weights]:
        """(head, embedding); the embedding is empty where both are one matrix."""
        params = self.size("vocab_size") * self.hidden
        bits = self.quant.head_bits if self.quant and self.quant.head_bits is not None else self.dtype_bytes * 8
        table = Weights(params, params * bits / 8)
        tied = self.config.get("tie_word_embeddings", self.text.get("tie_word_embeddings"))
        if tied is None:
            tied = self.type.startswith("gemma")
        return table, NONE if tied else table
