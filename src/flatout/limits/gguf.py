"""A model's shape from a GGUF file's header: the tensors' real types and sizes. Format: docs/gguf.md of ggml-org/ggml.

Only the header is read, with every count and length bounded, so that a damaged or hostile file ends in a message.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

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

MAGIC: Final = b"GGUF"
_MOST_TENSORS: Final = 200_000
_MOST_KEYS: Final = 20_000
_MOST_TEXT: Final = 16 * 1024 * 1024
_MOST_ITEMS: Final = 4_000_000
_MOST_HEADER: Final = 512 * 1024 * 1024
_KEPT_ITEMS: Final = MOST_LAYERS
_MOST_PARTS: Final = 1000

_SCALARS: Final[Mapping[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_TEXT: Final = 8
_ARRAY: Final = 9

BLOCKS: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Tensor type → (name, weights in a block, bytes of a block): ggml's block layouts."""
_PLAIN: Final = frozenset({"F64", "F32", "F16", "BF16"})
_PATTERNS: Final[Mapping[str, int]] = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4}
"""Every n-th layer is global, where the file leaves the pattern to the engine."""

Value = int | float | bool | str | list[int | float | bool | str]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its elements, its type's name and its bytes."""

    name: str
    elements: int
    type: str
    bytes: int


class _Source:
    """A file that gives so many bytes at most and never fewer than asked."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, _MOST_HEADER

    def take(self, count: int) -> bytes:
        if count > self._left:
            raise ShapeError(f"the GGUF header is longer than {_MOST_HEADER >> 20} MiB; the file is damaged")
        data = self._file.read(count)
        if len(data) != count:
            raise ShapeError("the GGUF header is cut off: was the file downloaded whole?")
        self._left -= count
        return data

    def number(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def length(self, most: int, what: str) -> int:
        value = int(self.number("<Q"))
        if value > most:
            raise ShapeError(f"the GGUF header says {value:,} {what}; at most {most:,} are read: the file is damaged")
        return value

    def text(self) -> str:
        return self.take(self.length(_MOST_TEXT, "bytes of one text")).decode("utf-8", "replace")

    def value(self, kind: int) -> Value | None:
        """A value; None for an array too long to be a size for each layer (tokens, merges)."""
        if kind == _TEXT:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ShapeError(f"the GGUF header has a value of the unknown type {kind}; the file is damaged or newer")
        item, count = int(self.number("<I")), self.length(_MOST_ITEMS, "items of one list")
        if item in _SCALARS and count > _KEPT_ITEMS:
            self.take(count * struct.calcsize(_SCALARS[item]))
            return None
        if item == _ARRAY:
            raise ShapeError("the GGUF header has a list of lists; the file is damaged or newer")
        kept: list[int | float | bool | str] = []
        for _ in range(count):
            one = self.value(item)
            if count <= _KEPT_ITEMS and one is not None and not isinstance(one, list):
                kept.append(one)
        return kept if count <= _KEPT_ITEMS else None


def read_header(file: BinaryIO) -> tuple[dict[str, Value], list[Tensor]]:
    """Keys and tensors of a GGUF file (version 2 or 3, little-endian). Raises ShapeError."""
    source = _Source(file)
    if source.take(4) != MAGIC:
        raise ShapeError("this is no GGUF file: it does not begin with 'GGUF'")
    version = int(source.number("<I"))
    if version not in (2, 3):
        raise ShapeError(f"GGUF version {version} cannot be read; versions 2 and 3 (little-endian) can")
    tensor_count, key_count = source.length(_MOST_TENSORS, "tensors"), source.length(_MOST_KEYS, "keys")
    keys: dict[str, Value] = {}
    for _ in range(key_count):
        name = source.text()
        value = source.value(int(source.number("<I")))
        if value is not None:
            keys[name] = value
    return keys, [_tensor(source) for _ in range(tensor_count)]


def _tensor(source: _Source) -> Tensor:
    name = source.text()
    dimensions = int(source.number("<I"))
    if dimensions > 8:
        raise ShapeError(f"the GGUF tensor {name[:60]!r} has {dimensions} dimensions; the file is damaged")
    elements = math.prod(source.length(MOST_SIZE, "elements in a row") for _ in range(dimensions))
    kind = int(source.number("<I"))
    source.take(8)
    if kind not in BLOCKS:
        raise ShapeError(f"the GGUF tensor {name[:60]!r} has the unknown type {kind}; update flatout")
    label, block, size = BLOCKS[kind]
    return Tensor(name, elements, label, -(-elements // block) * size)


def shape_of_gguf(path: Path) -> ModelShape:
    """The shape of a GGUF model; all parts of a split one are read from the same directory. Raises ShapeError."""
    keys, tensors = _read(path)
    parts = keys.get("split.count")
    if isinstance(parts, int) and parts > 1:
        keys, tensors = _read_parts(path, parts)
    return _Gguf(keys, tensors).shape()


def shape_of_bytes(data: bytes) -> ModelShape:
    """The same from the beginning of a file in memory."""
    return _Gguf(*read_header(io.BytesIO(data))).shape()


def _read(path: Path) -> tuple[dict[str, Value], list[Tensor]]:
    with path.open("rb", buffering=1 << 20) as file:
        return read_header(file)


def _read_parts(path: Path, count: int) -> tuple[dict[str, Value], list[Tensor]]:
    named = re.fullmatch(r"(.*)-\d{5}-of-\d{5}\.gguf", path.name)
    if named is None or count > _MOST_PARTS:
        raise ShapeError(f"{path.name} is one of {count} parts, but its name does not say which; keep the parts' names")
    keys: dict[str, Value] = {}
    tensors: list[Tensor] = []
    for number in range(1, count + 1):
        part = path.with_name(f"{named[1]}-{number:05d}-of-{count:05d}.gguf")
        if not part.is_file():
            raise ShapeError(f"{part.name} is missing: all {count} parts of the model must lie beside each other")
        more, found = _read(part)
        keys = {**more, **keys}
        tensors += found
    return keys, tensors


class _Gguf:
    """One header while its shape is put together."""

    def __init__(self, keys: Mapping[str, Value], tensors: list[Tensor]) -> None:
        self.keys, self.notes = keys, list[str]()
        self.arch = str(keys.get("general.architecture") or "")
        self.count = self.size("block_count", most=MOST_LAYERS) - (self.optional("nextn_predict_layers") or 0)
        self.by_layer: dict[int, list[Tensor]] = defaultdict(list)
        self.by_name: dict[str, Tensor] = {}
        for tensor in tensors:
            found = re.match(r"blk\.(\d{1,6})\.", tensor.name)
            if found:
                self.by_layer[int(found[1])].append(tensor)
            else:
                self.by_name[tensor.name] = tensor

    def optional(self, name: str, layer: int | None = None, most: int = MOST_SIZE) -> int | None:
        """A size, or that of one layer where the file has a list."""
        value = self.keys.get(f"{self.arch}.{name}")
        if isinstance(value, list):
            value = value[layer] if layer is not None and layer < len(value) else None
        if value is None or isinstance(value, bool | str | float | list):
            return None
        if not 0 <= value <= most:
            raise ShapeError(f"the GGUF key {self.arch}.{name} is {value}; that cannot be a size")
        return value

    def size(self, name: str, layer: int | None = None, most: int = MOST_SIZE) -> int:
        value = self.optional(name, layer, most)
        if not value or value < 1:
            raise ShapeError(f"the GGUF header has no {self.arch or '<architecture>'}.{name}: is it a language model?")
        return value

    def shape(self) -> ModelShape:
        layers = grouped(self.layers())
        if not layers:
            raise ShapeError("the GGUF header has no layers: is it a language model?")
        head, embedding = self.vocabulary()
        label, quantised = self.main_type()
        name = self.keys.get("general.name") or self.arch
        return ModelShape(
            name=str(name)[:200], layers=layers, head=head, embedding=embedding, kv_element_bytes=2.0,
            compute="int8" if quantised else "bf16", quantization=label,
            max_context=self.optional("context_length"), notes=tuple(dict.fromkeys(self.notes)),
        )  # fmt: skip

    def main_type(self) -> tuple[str, bool]:
        """The type that holds the most weights, and whether it is a quantised one."""
        total: dict[str, int] = defaultdict(int)
        for tensor in (t for group in self.by_layer.values() for t in group):
            total[tensor.type] += tensor.elements
        label = max(total, key=lambda kind: total[kind])
        return label, label not in _PLAIN

    def layers(self) -> Iterator[tuple[Mixer, FeedForward]]:
        for index in range(self.count):
            tensors = self.by_layer.get(index)
            if not tensors:
                raise ShapeError(f"the GGUF file has no tensors for layer {index} of {self.count}; is a part missing?")
            yield self.mixer(index, tensors), self.feed_forward(index, tensors)

    def mixer(self, index: int, tensors: list[Tensor]) -> Mixer:
        short = {t.name.split(".", 2)[2] for t in tensors}
        weights = _sum(t for t in tensors if not t.name.split(".", 2)[2].startswith("ffn_"))
        recurrent = any(name.startswith("ssm_") for name in short)
        attends = any(name.startswith(("attn_k.", "attn_kv_a_mqa.", "attn_output.")) for name in short)
        if recurrent and not attends:
            return self._linear(weights)
        if recurrent or not (attends or "attn_qkv.weight" in short):
            raise ShapeError(f"layer {index} of this {self.arch} model is of a kind that flatout does not model")
        if self.optional("attention.kv_lora_rank"):
            return self._latent(weights)
        heads = self.size("attention.head_count", index)
        key_dim = self.optional("attention.key_length") or self.size("embedding_length") // heads
        return attention(
            weights, heads=heads, kv_heads=self.optional("attention.head_count_kv", index) or heads, key_dim=key_dim,
            value_dim=self.optional("attention.value_length") or key_dim, window=self._window(index),
        )  # fmt: skip

    def _window(self, index: int) -> int | None:
        window = self.optional("attention.sliding_window")
        if not window:
            return None
        listed = self.keys.get(f"{self.arch}.attention.sliding_window_pattern")
        if isinstance(listed, list) and index < len(listed):
            return window if listed[index] else None
        every = listed if isinstance(listed, int) and not isinstance(listed, bool) else _PATTERNS.get(self.arch)
        if not every:
            self.notes.append("the file has a sliding window but not which layers use it; all are taken to")
            return window
        return window if (index + 1) % every else None

    def _latent(self, weights: Weights) -> Mixer:
        rope = self.size("rope.dimension_count")
        key = self.optional("attention.key_length_mla") or self.size("attention.key_length")
        value = self.optional("attention.value_length_mla") or self.size("attention.value_length")
        return latent_attention(
            weights, heads=self.size("attention.head_count", 0), rank=self.size("attention.kv_lora_rank"),
            rope_dim=rope, nope_dim=max(0, key - rope), value_dim=value,
        )  # fmt: skip

    def _linear(self, weights: Weights) -> Mixer:
        """llama.cpp's state: inner size × state size a layer, 32-bit; convolution over inner + 2 · groups · state."""
        inner, state = self.size("ssm.inner_size"), self.size("ssm.state_size")
        groups, kernel = self.optional("ssm.group_count") or 0, self.size("ssm.conv_kernel", most=4096)
        heads = self.optional("ssm.time_step_rank") or 1
        return linear_attention(
            weights, heads=heads, key_dim=state, value_dim=max(1, inner // heads), state_bytes=4.0,
            conv_elements=(kernel - 1) * (inner + 2 * groups * state),
        )  # fmt: skip

    def feed_forward(self, index: int, tensors: list[Tensor]) -> FeedForward:
        parts = [(t, t.name.split(".", 2)[2]) for t in tensors]
        dense = _sum(t for t, name in parts if name.startswith("ffn_") and "_exps" not in name)
        routed = _sum(t for t, name in parts if name.startswith("ffn_") and "_exps" in name)
        if not routed.params:
            return FeedForward(dense)
        experts, active = self.size("expert_count"), self.size("expert_used_count")
        if active > experts:
            raise ShapeError(f"the GGUF header has {active} active experts of {experts}; the file is damaged")
        return FeedForward(dense, experts, active, Weights(routed.params // experts, routed.bytes / experts))

    def vocabulary(self) -> tuple[Weights, Weights]:
        table = self.by_name.get("token_embd.weight")
        if table is None:
            raise ShapeError("the GGUF file has no token_embd.weight: is it a whole language model?")
        embedding = Weights(table.elements, float(table.bytes))
        head = self.by_name.get("output.weight")
        return (Weights(head.elements, float(head.bytes)), embedding) if head else (embedding, NONE)


def _sum(tensors: Iterator[Tensor]) -> Weights:
    total = NONE
    for tensor in tensors:
        total = total + Weights(tensor.elements, float(tensor.bytes))
    return total
