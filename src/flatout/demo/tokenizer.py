"""A byte-level BPE vocabulary, trained in a second or two on our own generated text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flatout.demo import needs_extra
from flatout.prompts.book import Heads
from flatout.prompts.text import generate
from flatout.prompts.words import PAD_WORDS

VOCAB_SIZE: Final = 6144
TRAINING_CHARS: Final = 1_500_000
TRAINING_SEED: Final = 20_260
TRAINING_REPEATS: Final = 8_192

END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
CONTROL: Final = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE: Final = (
    "{% for turn in messages %}"
    "<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SPOKEN: Final = re.compile(r"Ġ[a-z]{2,}")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[id]` in GPT-2's byte notation (`Ġ` is a space), `merges` as `left right` in order of rank."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)

    def is_control(self, token_id: int) -> bool:
        return self.tokens[token_id] in CONTROL

    def is_spoken(self, token_id: int) -> bool:
        """Whether the random model may say it: a lower-case word with the space before it.

        So no answer ends early or holds half a character, and its text divides into the same tokens again.
        """
        return _SPOKEN.fullmatch(self.tokens[token_id]) is not None


def train(vocab_size: int = VOCAB_SIZE) -> Vocabulary:
    """The vocabulary, the same every time. Raises EngineMissing without the `tokenizers` package."""
    with needs_extra():
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    # llama.cpp knows this way of splitting text before BPE by the name "gpt-2".
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    merges = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    return Vocabulary((*sorted(ids, key=ids.__getitem__), *CONTROL), merges)


def _training_text() -> Iterator[str]:
    """Generated text, and the small words of prompts, which must be one token each as they are in real vocabularies."""
    yield from generate(TRAINING_SEED, TRAINING_CHARS).split("\n\n")
    heads = Heads(salt=0)
    yield from (heads.next() for _ in range(TRAINING_REPEATS))
    yield from [" " + " ".join(PAD_WORDS)] * TRAINING_REPEATS
