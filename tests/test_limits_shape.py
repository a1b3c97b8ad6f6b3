"""Shapes of known models against what their makers publish; damaged and hostile configs end in a clear message."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.limits import ModelShape, ShapeError, model_shape
from flatout.limits.quant import quantization_of
from tests import limit_models as m

PARAMETERS = [
    # (config, billions in all, billions active with the head, without the embedding): what the makers publish, rounded
    (m.LLAMA_8B, 8.03, 7.5),
    (m.LLAMA_405B, 405.8, 403.7),
    (m.QWEN25_72B, 72.7, 71.5),
    (m.MIXTRAL, 46.7, 12.75),
    (m.QWEN3_30B, 30.5, 3.04),
    (m.QWEN3_NEXT, 79.7, 3.6),
    (m.DEEPSEEK_V3, 671.0, 36.6),
    (m.GPT_OSS_20B, 20.9, 3.61),
    (m.GEMMA3_27B, 27.0, 27.0),
    (m.QWEN35_4B, 4.21, 4.21),
]


@pytest.mark.parametrize(("config", "total", "active"), PARAMETERS)
def test_parameters_of_known_models(config: dict[str, Any], total: float, active: float) -> None:
    shape = model_shape(config)
    assert shape.params / 1e9 == pytest.approx(total, rel=0.005)
    assert shape.active_params / 1e9 == pytest.approx(active, rel=0.02)
    assert shape.layer_count == (config.get("text_config") or config)["num_hidden_layers"]


@pytest.mark.parametrize(
    ("config", "kib_bytes"),
    # DeepSeek, "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1: KV cache a token in BF16
    [(m.DEEPSEEK_V3, 70_272), (m.QWEN25_72B, 327_680), (m.LLAMA_405B, 516_096), (m.LLAMA_8B, 131_072)],
)
def test_kv_cache_a_token_as_published(config: dict[str, Any], kib_bytes: int) -> None:
    assert model_shape(config).kv_bytes_per_token == kib_bytes


def test_kinds_of_layers() -> None:
    assert model_shape(m.QWEN35_4B).kinds() == {"linear": 24, "full": 8}
    assert model_shape(m.QWEN3_NEXT).kinds() == {"linear": 36, "full": 12}
    assert model_shape(m.GPT_OSS_20B).kinds() == {"sliding": 12, "full": 12}
    assert model_shape(m.GEMMA3_27B).kinds() == {"sliding": 52, "full": 10}
    assert model_shape(m.DEEPSEEK_V3).kinds() == {"latent": 61}
    assert model_shape(m.QWEN25_72B).kinds() == {"full": 80}
    assert model_shape(m.LLAMA_8B | {"sliding_window": 4096, "model_type": "mistral"}).kinds() == {"sliding": 32}
    gemma2 = model_shape(m.LLAMA_8B | {"sliding_window": 4096, "model_type": "gemma2"})
    assert gemma2.kinds() == {"sliding": 16, "full": 16}


def test_moe_layers_where_the_config_says() -> None:
    def moe(config: dict[str, Any]) -> int:
        return sum(layer.count for layer in model_shape(config).layers if layer.feed_forward.experts)

    assert moe(m.DEEPSEEK_V3) == 58
    assert moe(m.QWEN3_30B | {"mlp_only_layers": [0, 1, 5]}) == 45
    assert moe(m.QWEN3_30B | {"decoder_sparse_step": 2}) == 24
    assert moe(m.LLAMA_8B) == 0


def test_state_of_linear_layers() -> None:
    shape = model_shape(m.QWEN35_4B)
    # 24 layers x (32 heads x 128 x 128 of float32 + 3 x 8192 of 16 bits)
    assert shape.state_bytes_per_sequence == 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert model_shape(m.QWEN3_NEXT).state_bytes_per_sequence == 36 * (32 * 128 * 128 * 2 + 3 * 8192 * 2)


def test_weights_of_quantised_models() -> None:
    # OpenAI's model card: the checkpoint of gpt-oss-20b has 12.8 GiB
    assert model_shape(m.GPT_OSS_20B).weight_bytes / 1024**3 == pytest.approx(12.8, rel=0.01)
    deepseek = model_shape(m.DEEPSEEK_V3)
    assert deepseek.compute == "fp8" and deepseek.weight_bytes == pytest.approx(deepseek.params, rel=0.02)
    plain = model_shape(m.LLAMA_8B)
    awq = model_shape(m.LLAMA_8B | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    assert awq.head == plain.head and awq.compute == "bf16"
    layers = plain.params - plain.head.params - plain.embedding.params
    assert awq.weight_bytes == pytest.approx(layers * (4 + 20 / 128) / 8 + plain.head.bytes * 2, rel=1e-6)
    mlx = model_shape(m.LLAMA_8B | {"quantization": {"bits": 4, "group_size": 64}})
    assert mlx.weight_bytes == pytest.approx(plain.params * 4.5 / 8, rel=1e-6)
    by_hand = model_shape(m.LLAMA_8B, weight_bits=4.5)
    assert "as typed" in by_hand.quantization and by_hand.weight_bytes < plain.weight_bytes / 2


@pytest.mark.parametrize(
    ("config", "bits", "compute"),
    [
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, "bf16"),
        ({"quant_method": "mxfp4"}, 4.25, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, "fp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 8, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127, "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, "int8"),
        ({"quant_method": "exl2", "bits": 2.5, "head_bits": 6}, 2.5, "bf16"),
        (_ct := {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 4, "type": "int", "group_size": 128}, "input_activations": None}}}, 4.125, "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": "float", "group_size": None},
            "input_activations": {"num_bits": 8, "type": "float"}}}}, 8, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 4, "type": "float", "group_size": 16},
            "input_activations": {"num_bits": 4, "type": "float"}}}}, 4.5, "fp4"),
    ],
)  # fmt: skip
def test_quantisations(config: dict[str, Any], bits: float, compute: str) -> None:
    found = quantization_of(config)
    assert found is not None and found.bits == pytest.approx(bits) and found.compute == compute


def test_modules_left_unquantised() -> None:
    base = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    plain, all_fp8 = model_shape(m.LLAMA_8B), model_shape(m.LLAMA_8B | {"quantization_config": base})
    attention = sum(layer.count * layer.mixer.weights.params for layer in plain.layers)
    for pattern in ("re:.*self_attn.*", "model.layers.*.self_attn", "self_attn", "re:^model\\.layers\\..*\\.self_attn"):
        config = m.LLAMA_8B | {"quantization_config": base | {"ignore": [pattern, "lm_head"]}}
        assert model_shape(config).weight_bytes == pytest.approx(all_fp8.weight_bytes + attention), pattern
    one = m.LLAMA_8B | {"quantization_config": base | {"modules_to_not_convert": ["model.layers.0.mlp"]}}
    assert model_shape(one).weight_bytes == pytest.approx(all_fp8.weight_bytes + 3 * 4096 * 14336)
    odd = m.LLAMA_8B | {"quantization_config": base | {"ignore": ["re:(a+)+$"]}}
    assert model_shape(odd).weight_bytes == all_fp8.weight_bytes
    assert any("not understood" in note for note in model_shape(odd).notes)


REFUSED = [
    ({}, "hidden_size"),
    ({"hidden_size": 64}, "num_hidden_layers"),
    (m.LLAMA_8B | {"hidden_size": "big"}, "not a whole number"),
    (m.LLAMA_8B | {"hidden_size": 10**30}, "cannot be a size"),
    (m.LLAMA_8B | {"num_hidden_layers": 10**8}, "cannot be a size"),
    (m.LLAMA_8B | {"num_hidden_layers": -3}, "cannot be a size"),
    (m.LLAMA_8B | {"torch_dtype": "int3"}, "dtype"),
    (m.LLAMA_8B | {"layer_types": ["full_attention"]}, "layer_types names 1"),
    (m.LLAMA_8B | {"layer_types": ["mystery"] * 32}, "mystery"),
    (m.LLAMA_8B | {"is_encoder_decoder": True}, "encoder-decoder"),
    (m.LLAMA_8B | {"hybrid_override_pattern": "M-M*-"}, "hybrid_override_pattern"),
    (m.DEEPSEEK_V3 | {"index_topk": 2048}, "index_topk"),
    (m.MIXTRAL | {"num_experts_per_tok": 99}, "99 active experts"),
    (m.LLAMA_8B | {"quantization_config": {"quant_method": "abracadabra"}}, "--weight-bits"),
    (m.LLAMA_8B | {"quantization_config": {"quant_method": "awq", "bits": "four"}}, "not a number"),
    (m.LLAMA_8B | {"quantization_config": ["awq"]}, "not a table"),
]


@pytest.mark.parametrize(("config", "says"), REFUSED)
def test_what_cannot_be_read_is_said(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        model_shape(config)
    assert says in str(caught.value)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(m.LLAMA_8B))
    assert model_shape(tmp_path) == model_shape(m.LLAMA_8B) == model_shape(str(tmp_path / "config.json"))
    for name, data, says in (
        ("list.json", b"[1]", "not a model's config"),
        ("bad.json", b'{"hidden_size": ', "neither a GGUF file nor JSON"),
        ("deep.json", b"[" * 100_000, "neither a GGUF file nor JSON"),
        ("zip", b"PK\x03\x04\xff", "neither a GGUF file nor JSON"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ShapeError, match=says):
            model_shape(tmp_path / name)
    with pytest.raises(ShapeError, match="cannot be read"):
        model_shape(tmp_path / "none.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShapeError, match=r"neither a config\.json nor a GGUF"):
        model_shape(tmp_path / "empty")


CONFIGS = [config for config, _, _ in PARAMETERS]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(CONFIGS), st.data())
def test_a_changed_config_gives_a_sound_shape_or_a_message(config: dict[str, Any], data: st.DataObject) -> None:
    changed = copy.deepcopy(config)
    inner = changed.get("text_config", changed)
    for key in data.draw(st.lists(st.sampled_from(sorted(inner)), min_size=1, max_size=3)):
        inner[key] = data.draw(JSON)
    try:
        shape = model_shape(changed)
    except ShapeError as error:
        assert str(error) and len(str(error)) < 500
        return
    assert_sound(shape)


def assert_sound(shape: ModelShape) -> None:
    assert 0 < shape.active_params <= shape.params + shape.head.params
    assert math.isfinite(shape.weight_bytes) and shape.weight_bytes > 0
    assert shape.kv_bytes_per_token >= 0 and shape.state_bytes_per_sequence >= 0
    assert 0 < shape.layer_count <= 2000
