"""Writes the embedded engine's model: random weights in the shape of Qwen3.5's hybrid, with our own vocabulary.

Three linear-attention layers (gated delta rule, with a short convolution), then one full-attention layer, and so on.
The text that it writes has no meaning; what a server has to do for each token is what it does for a real model.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flatout import __version__
from flatout.demo import needs_extra
from flatout.demo.tokenizer import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, VOCAB_SIZE, Vocabulary, train

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

VERSION: Final = 1
"""Rises whenever the file of the same shape would have other bytes."""

ARCHITECTURE: Final = "qwen35"
NAME: Final = "flatout-demo-47M-random"

CONSTANT: Final = 8.0
"""Channel 0 of the residual stream: the same for every token, written by the embedding and never changed after it."""

NEVER: Final = -20.0
"""Weight of the constant channel in the output row of a token that must not be said."""

BLOCK_WEIGHTS: Final = 32
CODE_DEVIATION: Final = 17.5**0.5
"""Standard deviation of code − 8 for the sixteen codes used: 0 twice, ±1 to ±7 once each."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model; all lengths in elements, `context` in tokens."""

    vocab: int = VOCAB_SIZE
    hidden: int = 512
    layers: int = 12
    feed_forward: int = 1536
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 64
    full_attention_every: int = 4
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_head_size: int = 128
    conv_kernel: int = 4
    context: int = 32_768

    @property
    def linear_inner(self) -> int:
        return self.linear_value_heads * self.linear_head_size

    @property
    def linear_qkv(self) -> int:
        return 2 * self.linear_key_heads * self.linear_head_size + self.linear_inner

    def is_full_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_every == 0


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/flatout`, or `~/.cache/flatout`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "flatout"


def ensure_model(directory: Path | None = None, shape: Shape | None = None) -> Path:
    """The model's path in the cache, built first where it is not there yet (about a second).

    Raises EngineMissing without the extra, OSError saying what to do where the directory cannot
    be written.
    """
    shape, directory = shape or Shape(), directory or cache_dir()
    key = hashlib.sha256(repr((VERSION, sorted(asdict(shape).items()))).encode()).hexdigest()[:10]
    directory = directory / f"engine-{VERSION}-{key}"
    path = directory / f"{NAME}.gguf"
    if not path.exists():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_model(path, shape)
        except OSError as error:
            raise OSError(
                f"The demo's model (36 MB) cannot be written to {directory} ({error.strerror or error}). "
                "Set XDG_CACHE_HOME to a directory that can be written."
            ) from error
    return path


def write_model(path: Path, shape: Shape | None = None) -> None:
    """Writes the GGUF beside `path` and renames it, so that a file by this name is always whole.

    Equal shapes give equal bytes. Raises EngineMissing without the extra, OSError where the place cannot be written.
    """
    with needs_extra():
        import gguf
    shape = shape or Shape()
    vocabulary = train(shape.vocab)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        writer = gguf.GGUFWriter(beside, ARCHITECTURE)
        _describe(writer, gguf, shape)
        _add_vocabulary(writer, gguf, vocabulary)
        _Weights(writer, gguf, shape).add_all(vocabulary)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _describe(writer: Any, gguf: Any, shape: Shape) -> None:
    writer.add_name(NAME)
    writer.add_description(f"Random weights, written by flatout {__version__} for its demo; the text has no meaning.")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    # A quarter of each head is rotated, in sections for time, height and width; text uses the first two alike.
    rotated = shape.head_size // 4
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_dimension_sections([rotated // 4, rotated // 4, 0, 0])
    writer.add_uint32(f"{ARCHITECTURE}.full_attention_interval", shape.full_attention_every)
    writer.add_ssm_conv_kernel(shape.conv_kernel)
    writer.add_ssm_state_size(shape.linear_head_size)
    writer.add_ssm_group_count(shape.linear_key_heads)
    writer.add_ssm_time_step_rank(shape.linear_value_heads)
    writer.add_ssm_inner_size(shape.linear_inner)


def _add_vocabulary(writer: Any, gguf: Any, vocabulary: Vocabulary) -> None:
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(
        [kinds.CONTROL if vocabulary.is_control(i) else kinds.NORMAL for i in range(len(vocabulary.tokens))]
    )
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_eos_token_id(vocabulary.id_of(TURN_END))
    writer.add_pad_token_id(vocabulary.id_of(END_OF_TEXT))
    writer.add_bos_token_id(vocabulary.id_of(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


class _Weights:
    """Adds tensors to the writer, drawn from one stream of random bytes.

    Only the raw output of PCG64 is used, whose sequence NumPy keeps from version to version, and exact arithmetic: the
    bytes of the file are the same on every machine. Weights are uniform; a matrix's standard deviation is
    `gain / sqrt(inputs)`, so that each layer keeps the size of what flows through it.
    """

    def __init__(self, writer: Any, gguf: Any, shape: Shape) -> None:
        import numpy as np

        self._np = np
        self._writer = writer
        self._q4 = gguf.GGMLQuantizationType.Q4_0
        self._shape = shape
        self._bits = np.random.PCG64(VERSION)

    def add_all(self, vocabulary: Vocabulary) -> None:
        """Every tensor of the model."""
        np, shape = self._np, self._shape
        embedding = self._uniform(shape.vocab, shape.hidden, 1.0)
        embedding[:, 0] = CONSTANT
        head = self._uniform(shape.vocab, shape.hidden, 2.0 * shape.hidden**-0.5)
        head[:, 0] = [0.0 if vocabulary.is_spoken(i) else NEVER for i in range(shape.vocab)]
        self._writer.add_tensor("token_embd.weight", embedding.astype(np.float16))
        self._writer.add_tensor("output.weight", head.astype(np.float16))
        self._ones("output_norm.weight", shape.hidden)
        for layer in range(shape.layers):
            self._add_layer(layer)

    def _add_layer(self, layer: int) -> None:
        shape, prefix = self._shape, f"blk.{layer}."
        self._ones(prefix + "attn_norm.weight", shape.hidden)
        self._ones(prefix + "post_attention_norm.weight", shape.hidden)
        self._matrix(prefix + "ffn_gate.weight", shape.feed_forward, shape.hidden)
        self._matrix(prefix + "ffn_up.weight", shape.feed_forward, shape.hidden)
        self._matrix(prefix + "ffn_down.weight", shape.hidden, shape.feed_forward, into_residual=True)
        if shape.is_full_attention(layer):
            self._add_full_attention(prefix)
        else:
            self._add_linear_attention(prefix)

    def _add_full_attention(self, prefix: str) -> None:
        shape = self._shape
        queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        # The query projection is twice as wide: its second half gates the output.
        self._matrix(prefix + "attn_q.weight", 2 * queries, shape.hidden)
        self._matrix(prefix + "attn_k.weight", keys, shape.hidden)
        self._matrix(prefix + "attn_v.weight", keys, shape.hidden)
        self._matrix(prefix + "attn_output.weight", shape.hidden, queries, into_residual=True)
        self._ones(prefix + "attn_q_norm.weight", shape.head_size)
        self._ones(prefix + "attn_k_norm.weight", shape.head_size)

    def _add_linear_attention(self, prefix: str) -> None:
        np, shape = self._np, self._shape
        heads = shape.linear_value_heads
        self._matrix(prefix + "attn_qkv.weight", shape.linear_qkv, shape.hidden)
        self._matrix(prefix + "attn_gate.weight", shape.linear_inner, shape.hidden)
        self._matrix(prefix + "ssm_out.weight", shape.hidden, shape.linear_inner, into_residual=True)
        for name in ("ssm_beta", "ssm_alpha"):
            self._writer.add_tensor(f"{prefix}{name}.weight", self._uniform(heads, shape.hidden, shape.hidden**-0.5))
        self._writer.add_tensor(prefix + "ssm_conv1d.weight", self._uniform(shape.linear_qkv, shape.conv_kernel, 0.5))
        self._ones(prefix + "ssm_dt.bias", heads)
        # Each head forgets at its own pace.
        self._writer.add_tensor(prefix + "ssm_a", -np.linspace(0.5, 2.0, heads, dtype=np.float32))
        self._ones(prefix + "ssm_norm.weight", shape.linear_head_size)

    def _ones(self, name: str, size: int) -> None:
        self._writer.add_tensor(name, self._np.ones(size, self._np.float32))

    def _random_bytes(self, count: int) -> Bytes:
        np = self._np
        drawn: Bytes = self._bits.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)
        return drawn[:count]

    def _uniform(self, rows: int, columns: int, deviation: float) -> Floats:
        """Rows × columns, float32, uniform with this standard deviation."""
        np = self._np
        steps = self._random_bytes(rows * columns * 2).view("<i2").reshape(rows, columns)
        scaled: Floats = steps.astype(np.float32) * np.float32(deviation * 3**0.5 / 2**15)
        return scaled

    def _matrix(self, name: str, rows: int, columns: int, *, into_residual: bool = False) -> None:
        """A Q4_0 matrix, made without quantizing anything.

        The format: blocks of 32 weights, a float16 scale and 16 bytes of two four-bit codes each; a weight is
        scale · (code − 8). Code 0 (−8, which has no opposite) becomes 8 (zero), so that the mean is 0. With
        `into_residual` row 0 is zero: the constant channel stays constant.
        """
        np = self._np
        blocks = columns // BLOCK_WEIGHTS
        codes = self._random_bytes(rows * blocks * BLOCK_WEIGHTS // 2).reshape(rows, blocks, BLOCK_WEIGHTS // 2)
        low, high = codes & 15, codes >> 4
        codes = np.where(low == 0, 8, low) | (np.where(high == 0, 8, high) << 4)
        if into_residual:
            codes[0] = 0x88
        scale = np.full((rows, blocks, 1), columns**-0.5 / CODE_DEVIATION, "<f2").view(np.uint8)
        packed = np.concatenate([scale, codes.astype(np.uint8)], axis=2).reshape(rows, -1)
        self._writer.add_tensor(name, packed, raw_dtype=self._q4)
