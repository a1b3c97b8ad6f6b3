"""GGUF headers: files as the gguf library writes them, and damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.limits import ShapeError, model_shape
from flatout.limits.gguf import BLOCKS, shape_of_bytes
from tests.test_limits_shape import assert_sound

gguf = pytest.importorskip("gguf")

HIDDEN, WIDTH, VOCAB = 256, 512, 1024


def written(
    path: Path, arch: str, layers: list[dict[str, tuple[int, ...]]], *, kind: str = "Q4_0", output: bool = True,
    split: int = 0, **keys: Any,
) -> Path:  # fmt: skip
    """A GGUF file: layer tensors by short name and shape in the given type, embeddings in F16."""
    writer = gguf.GGUFWriter(str(path), arch, split_max_tensors=split)
    writer.add_string("general.name", f"tiny {arch}")
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(VOCAB)])
    writer.add_array("tokenizer.ggml.scores", [0.0] * 5000)
    standard = {"block_count": len(layers), "embedding_length": HIDDEN, "context_length": 4096}
    for name, value in (standard | keys).items():
        if isinstance(value, list):
            writer.add_array(f"{arch}.{name}", value)
        else:
            writer.add_uint32(f"{arch}.{name}", value)

    def add(name: str, shape: tuple[int, ...], type_name: str) -> None:
        if type_name in ("F16", "F32"):
            writer.add_tensor(name, np.zeros(shape, dtype=np.float16 if type_name == "F16" else np.float32))
            return
        quantised = gguf.GGMLQuantizationType[type_name]
        block, size = gguf.GGML_QUANT_SIZES[quantised]
        data = np.zeros((*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
        writer.add_tensor(name, data, raw_dtype=quantised)

    add("token_embd.weight", (VOCAB, HIDDEN), "F16")
    if output:
        add("output.weight", (VOCAB, HIDDEN), "Q6_K")
    for index, tensors in enumerate(layers):
        for name, shape in tensors.items():
            add(f"blk.{index}.{name}.weight", shape, "F32" if len(shape) == 1 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def attention_layer(kv: int = 2) -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (kv * 64, HIDDEN), "attn_v": (kv * 64, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (WIDTH, HIDDEN), "ffn_up": (WIDTH, HIDDEN),
        "ffn_down": (HIDDEN, WIDTH),
    }  # fmt: skip


HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2}


def test_a_dense_model(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llama", [attention_layer()] * 3, **HEADS)
    shape = model_shape(path)
    attention = HIDDEN * HIDDEN * 2 + 2 * 128 * HIDDEN
    assert shape.params == 3 * (attention + HIDDEN + 3 * WIDTH * HIDDEN) + 2 * VOCAB * HIDDEN
    assert shape.head.bytes == VOCAB * HIDDEN / 256 * 210 and shape.embedding.bytes == VOCAB * HIDDEN * 2
    quantised = 3 * ((attention + 3 * WIDTH * HIDDEN) / 32 * 18 + HIDDEN * 4)
    assert shape.weight_bytes == quantised + shape.head.bytes + shape.embedding.bytes
    assert shape.kv_bytes_per_token == 3 * 2 * (64 + 64) * 2 and shape.kinds() == {"full": 3}
    assert (shape.quantization, shape.compute, shape.name) == ("Q4_0", "int8", "tiny llama")
    tied = model_shape(written(tmp_path / "t.gguf", "llama", [attention_layer()], output=False, **HEADS))
    assert tied.embedding.params == 0 and tied.head.bytes == VOCAB * HIDDEN * 2


def test_experts_windows_and_hybrids(tmp_path: Path) -> None:
    moe = {k: v for k, v in attention_layer().items() if not k.startswith("ffn")}
    moe |= {
        "ffn_gate_inp": (8, HIDDEN), "ffn_up_exps": (8, 128, HIDDEN), "ffn_down_exps": (8, HIDDEN, 128),
        "ffn_up_shexp": (128, HIDDEN),
    }  # fmt: skip
    keys = {"expert_count": 8, "expert_used_count": 2, **HEADS}
    shape = model_shape(written(tmp_path / "moe.gguf", "qwen2moe", [moe, attention_layer()], kind="Q8_0", **keys))
    routed = next(layer.feed_forward for layer in shape.layers if layer.feed_forward.experts)
    assert (routed.experts, routed.active, routed.expert.params) == (8, 2, 2 * 128 * HIDDEN)
    assert routed.dense.params == (8 + 128) * HIDDEN and routed.expert.bytes == 2 * 128 * HIDDEN / 32 * 34

    layers = [attention_layer()] * 6
    swa = written(tmp_path / "g3.gguf", "gemma3", layers, **HEADS, **{"attention.sliding_window": 512})
    assert model_shape(swa).kinds() == {"sliding": 5, "full": 1}
    pattern = {"attention.sliding_window": 512, "attention.sliding_window_pattern": [True, False] * 3}
    assert model_shape(written(tmp_path / "p.gguf", "x", layers, **HEADS, **pattern)).kinds() == {
        "sliding": 3,
        "full": 3,
    }

    linear = {
        "attn_qkv": (HIDDEN * 2, HIDDEN), "attn_gate": (HIDDEN, HIDDEN), "ssm_conv1d": (HIDDEN * 2, 32),
        "ssm_out": (HIDDEN, HIDDEN), "ffn_up": (WIDTH, HIDDEN),
    }  # fmt: skip
    ssm = {"ssm.inner_size": 256, "ssm.state_size": 64, "ssm.group_count": 2, "ssm.conv_kernel": 4,
           "ssm.time_step_rank": 4}  # fmt: skip
    hybrid = model_shape(written(tmp_path / "h.gguf", "qwen35", [linear, linear, attention_layer()], **HEADS, **ssm))
    assert hybrid.kinds() == {"linear": 2, "full": 1}
    assert hybrid.state_bytes_per_sequence == 2 * (256 * 64 * 4 + 3 * (256 + 2 * 2 * 64) * 2)


def test_latent_attention(tmp_path: Path) -> None:
    layer = {
        "attn_q": (HIDDEN, HIDDEN), "attn_kv_a_mqa": (96, HIDDEN), "attn_k_b": (64, HIDDEN),
        "attn_output": (HIDDEN, 64), "ffn_up": (WIDTH, HIDDEN),
    }  # fmt: skip
    keys = {"attention.head_count": 4, "attention.kv_lora_rank": 64, "rope.dimension_count": 32,
            "attention.key_length": 96, "attention.value_length": 64}  # fmt: skip
    shape = model_shape(written(tmp_path / "mla.gguf", "deepseek2", [layer] * 2, **keys))
    assert shape.kinds() == {"latent": 2} and shape.kv_bytes_per_token == 2 * (64 + 32) * 2


def test_split_files(tmp_path: Path) -> None:
    whole = model_shape(written(tmp_path / "whole.gguf", "llama", [attention_layer()] * 3, **HEADS))
    (tmp_path / "parts").mkdir()
    written(tmp_path / "parts" / "m.gguf", "llama", [attention_layer()] * 3, split=10, **HEADS)
    parts = sorted((tmp_path / "parts").glob("*.gguf"))
    assert [part.name for part in parts] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert model_shape(parts[0]) == whole == model_shape(tmp_path / "parts")
    parts[1].unlink()
    with pytest.raises(ShapeError, match=r"m-00002-of-00003\.gguf is missing"):
        model_shape(parts[0])
    parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ShapeError, match="one of 3 parts"):
        model_shape(tmp_path / "renamed.gguf")


def test_types_are_those_of_the_library() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        assert BLOCKS[int(kind)] == (kind.name, block, size)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = written(tmp_path_factory.mktemp("g") / "s.gguf", "llama", [attention_layer()] * 2, **HEADS)
    return path.read_bytes()[:120_000]


def test_a_cut_file_is_told(small: bytes) -> None:
    assert_sound(shape_of_bytes(small))
    for cut in (0, 3, 4, 7, 8, 20, 100, 1000, 20_000):
        with pytest.raises(ShapeError):
            shape_of_bytes(small[:cut])


def test_bounds(tmp_path: Path) -> None:
    huge = struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 1)
    with pytest.raises(ShapeError, match="tensors"):
        shape_of_bytes(huge)
    text = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**62)
    with pytest.raises(ShapeError, match="bytes of one text"):
        shape_of_bytes(text)
    for version in (1, 4, 0x03000000):
        with pytest.raises(ShapeError, match="version"):
            shape_of_bytes(struct.pack("<4sIQQ", b"GGUF", version, 0, 0))


@settings(max_examples=150)
@given(st.data())
def test_damaged_bytes_never_crash(small: bytes, data: st.DataObject) -> None:
    damaged = bytearray(small)
    for _ in range(data.draw(st.integers(1, 8))):
        # the keys before and the tensors after the token list
        place = data.draw(st.integers(0, 700) | st.integers(37_000, 45_000))
        damaged[place % len(damaged)] = data.draw(st.integers(0, 255))
    try:
        assert_sound(shape_of_bytes(bytes(damaged)))
    except ShapeError as error:
        assert str(error)
