"""Writes a tiny random-weight Qwen3 model as Hugging Face does: `python tiny_model.py DIR`, with an engine's Python.

7 M parameters, and the vocabulary and chat template of flatout's embedded engine. Nothing is downloaded; equal calls
write equal weights. Its answers are lower-case words without meaning that never end early: channel 0 of the residual
stream is constant (the embedding writes it, no layer changes it), and in the output head it is a bias, strongly
negative for every other token. So a token is one event of the stream, and the text divides into the same tokens again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# flatout is not installed in the engines' environments.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from flatout.demo.tokenizer import CHAT_TEMPLATE, CONTROL, END_OF_TEXT, TURN_END, Vocabulary, train

HIDDEN = 256
LAYERS = 4
FEED_FORWARD = 768
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = 64
CONTEXT = 4096
CONSTANT = 8.0
NEVER = -20.0


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = train()
    write_tokenizer(directory, vocabulary)
    write_config(directory, vocabulary)
    save_file(weights(vocabulary), directory / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(directory: Path, vocabulary: Vocabulary) -> None:
    words = vocabulary.tokens[: -len(CONTROL)]
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    assert tokenizer.get_vocab_size() == len(vocabulary.tokens)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "bos_token": None,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def write_config(directory: Path, vocabulary: Vocabulary) -> None:
    end, pad = vocabulary.id_of(TURN_END), vocabulary.id_of(END_OF_TEXT)
    write_json(
        directory / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": len(vocabulary.tokens),
            "hidden_size": HIDDEN,
            "intermediate_size": FEED_FORWARD,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_SIZE,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "attention_bias": False,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "bos_token_id": None,
            "eos_token_id": end,
            "pad_token_id": pad,
            "dtype": "float32",
        },
    )
    write_json(
        directory / "generation_config.json",
        {"eos_token_id": [end, pad], "pad_token_id": pad, "do_sample": True, "temperature": 1.0},
    )


def weights(vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    """By Hugging Face's names. Each matrix keeps the size of what flows through it: deviation 1 / sqrt(inputs)."""
    random = np.random.default_rng(0)
    size = len(vocabulary.tokens)

    def matrix(rows: int, columns: int, deviation: float | None = None) -> np.ndarray:
        return random.standard_normal((rows, columns), np.float32) * np.float32(deviation or columns**-0.5)

    def into_residual(columns: int) -> np.ndarray:
        made = matrix(HIDDEN, columns)
        made[0] = 0.0
        return made

    embedding, head = matrix(size, HIDDEN, 1.0), matrix(size, HIDDEN, 2.0 * HIDDEN**-0.5)
    embedding[:, 0] = CONSTANT
    head[:, 0] = [0.0 if vocabulary.is_spoken(i) else NEVER for i in range(size)]
    made = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": ones(HIDDEN)}
    for layer in range(LAYERS):
        made |= {
            f"model.layers.{layer}.{name}.weight": tensor
            for name, tensor in (
                ("input_layernorm", ones(HIDDEN)),
                ("self_attn.q_proj", matrix(HEADS * HEAD_SIZE, HIDDEN)),
                ("self_attn.k_proj", matrix(KV_HEADS * HEAD_SIZE, HIDDEN)),
                ("self_attn.v_proj", matrix(KV_HEADS * HEAD_SIZE, HIDDEN)),
                ("self_attn.o_proj", into_residual(HEADS * HEAD_SIZE)),
                ("self_attn.q_norm", ones(HEAD_SIZE)),
                ("self_attn.k_norm", ones(HEAD_SIZE)),
                ("post_attention_layernorm", ones(HIDDEN)),
                ("mlp.gate_proj", matrix(FEED_FORWARD, HIDDEN)),
                ("mlp.up_proj", matrix(FEED_FORWARD, HIDDEN)),
                ("mlp.down_proj", into_residual(FEED_FORWARD)),
            )
        }
    return made


def ones(size: int) -> np.ndarray:
    return np.ones(size, np.float32)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
