"""Prompts of an exact token length that no server has ever seen.

A prompt is `head`, body, closing request. The head is a readable sentence that holds a number used once: it stands at
the very front, so the first block of every prompt is new (a difference at the end would leave the whole prompt in the
prefix cache). The body comes from a seed and is the same in each run. The closing request asks a real model to go on
writing, so that an answer is not over after a few words where `ignore_eos` is not understood.

Nothing here does I/O: who counts tokens, and how, is given by the caller.
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from flatout.prompts import words
from flatout.prompts.fit import SENDS, TAILS, TOKENIZE_CALLS, FitResult, Shape, fit
from flatout.prompts.text import Generated, Source

CountedBy = Literal["tokenize", "sibling_usage", "usage", "token_ids", "estimate"]
"""How the length is known: counted before sending; a sibling's usage; this prompt's own usage; ids; not at all."""

CLOSING: Final = "Continue this text in the same manner, at length and in full detail, without repeating anything."
CLOSING_FROM_TOKENS: Final = 128
"""Shorter prompts do without the closing request."""

SHARED_HEAD_WORDS: Final = 3
"""Two heads may begin with the same words by chance; with 100,000 prompts in a cache, hardly more than these.

So on a server whose cache has blocks of one token, a cold prompt may have about this many cached tokens after the chat
template's own."""

HEAD_BITS: Final = 58
_ODD: Final = 0x2545F4914F6CDD1D
_WORD: Final = re.compile(r"\S+")
_PIECE: Final = re.compile(r"[^\W\d_]+|[\W\d_]")
END_OF_CUT: Final = " and so on"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: `text`, or `token_ids`, never both.

    `seed` gives the body, `order` says by how many paragraphs it was turned round, `shape` is its length (None for
    ids). `head` is the sentence that was never sent before. `asked_tokens` is the label's length, `counted_tokens` the
    real one (None: not counted yet) and `counted_by` how that is known. `fit_calls` counts what the fit cost,
    `fit_reason` says why it is not exact.
    """

    text: str | None
    token_ids: Sequence[int] | None
    seed: int
    order: int
    head: str
    shape: Shape | None
    sha256: str
    asked_tokens: int
    counted_tokens: int | None
    counted_by: CountedBy
    fit_calls: int = 0
    fit_reason: str | None = None

    @property
    def exact(self) -> bool | None:
        """Whether the length is as asked; None where nobody counted."""
        return None if self.counted_tokens is None else self.counted_tokens == self.asked_tokens

    def with_usage(self, prompt_tokens: int) -> Prompt:
        """The same prompt with the server's own count of it."""
        return replace(self, counted_tokens=prompt_tokens, counted_by="usage")


class Heads:
    """Sentences that are never made twice: not by this object, and not by another one (58 random bits as the start).

    The first two words alone differ among any 4,096 heads in a row. All words are short and common, so that each is one
    token in nearly every vocabulary and all heads are equally long.
    """

    def __init__(self, salt: int | None = None) -> None:
        self.salt = secrets.randbits(HEAD_BITS) if salt is None else salt
        """Differs in each run; in the record, so that a prompt's text can be made again for a look at it."""
        self._made = 0

    def next(self) -> str:
        # An odd multiplier makes this a permutation of all 2^58 numbers, and of the low 12 bits too.
        number = (self.salt + self._made * _ODD) % (1 << HEAD_BITS)
        self._made += 1
        picked = []
        for _ in range(2):
            for vocabulary in (_ADJ, _NOUN, _VERB, _ADJ, _NOUN):
                number, index = divmod(number, len(vocabulary))
                picked.append(vocabulary[index])
        first, second = " ".join(picked[:5]), " ".join(picked[5:])
        return f"{first.capitalize()}, {second}."


_ADJ: Final = words.HEAD_ADJECTIVES
_NOUN: Final = words.HEAD_NOUNS
_VERB: Final = words.HEAD_VERBS


class Body:
    """Text of a seed, cut at any word, made as far as it is needed; its own `prompt_fit.Ruler`."""

    def __init__(self, source: Source, seed: int) -> None:
        self._paragraphs = source.paragraphs(seed)
        self._text = ""
        self._ends: array[int] = array("q", [0])
        self._weights: array[float] = array("d", [0.0])
        self._pad_random = random.Random(seed).random
        self._pads: list[str] = []

    def cut(self, shape: Shape) -> str:
        """The body of this shape; a code block that the cut leaves open is closed.

        Every cut goes on with the same small words: what a tokenizer joins at the end is then the same for all.
        """
        while len(self._ends) <= shape.words:
            self._grow()
        while len(self._pads) < shape.pads:
            word = words.PAD_WORDS[int(self._pad_random() * len(words.PAD_WORDS))]
            if word not in self._pads[-3:]:
                self._pads.append(word)
        text = self._text[: self._ends[shape.words]]
        fence = "\n```" if text.count("```") % 2 else ""
        pads = "".join([f" {word}" for word in self._pads[: shape.pads]])
        return f"{text}{pads}{END_OF_CUT}{TAILS[shape.tail]}{fence}" if text or pads or shape.tail else ""

    def weight(self, n_words: int) -> float:
        while len(self._weights) <= n_words:
            self._grow()
        return self._weights[n_words]

    def words(self, weight: float) -> int:
        while self._weights[-1] <= weight:
            self._grow()
        return max(0, bisect_right(self._weights, weight) - 1)

    def _grow(self) -> None:
        """At least a fifth more, so that growing is cheap however often it happens."""
        done = len(self._text)
        parts = [self._text] if done else []
        goal = done + max(2_000, done // 5)
        length = done
        while length < goal:
            part = next(self._paragraphs)
            length += len(part) + 2
            parts.append(part)
        self._text = "\n\n".join(parts)
        total = self._weights[-1]
        for match in _WORD.finditer(self._text, done):
            self._ends.append(match.end())
            total += _word_weight(match.group())
            self._weights.append(total)


@lru_cache(maxsize=65_536)
def _word_weight(word: str) -> float:
    """Rough tokens of one word: a piece of letters is one and more if long, each digit and mark is one.

    On generated text in parts of 1,000 words, tokens per weight vary by 2–3 % with two public vocabularies, tokens per
    word and per character by 5 %.
    """
    weight = 0.0
    for piece in _PIECE.findall(word):
        weight += max(1.0, 1 + (len(piece) - 7) / 5) if piece[0].isalpha() else 1
    return weight


def _turned(body: str, order: int) -> str:
    """The same paragraphs beginning with another one; the last, which the cut has shortened, stays the last."""
    parts = body.split("\n\n")
    whole = len(parts) - 1
    if not order or whole < 2:
        return body
    at = order % whole
    return "\n\n".join([*parts[at:whole], *parts[:at], parts[-1]])


def _assemble(head: str, body: str, closing: bool) -> str:
    return "\n\n".join([part for part in (head, body.strip(), CLOSING if closing else "") if part])


def body_seed(run_seed: int, key: str) -> int:
    """The body's seed for a key such as `cold/8192/0`: 63 bits of SHA-256 over `run_seed:key`."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}:{key}".encode()).digest()[:8], "big") >> 1


class PromptBook:
    """Makes a run's prompts: keeps the heads' counter, and what earlier fits taught about the tokenizer."""

    def __init__(self, run_seed: int, source: Source | None = None, *, salt: int | None = None) -> None:
        self.run_seed = run_seed
        self.source = source or Generated()
        self._heads = Heads(salt)
        self._tokens_per_weight: float | None = None

    @property
    def salt(self) -> int:
        """What makes this run's heads differ from every other run's."""
        return self._heads.salt

    def forget_counts(self) -> None:
        """Drops what earlier fits taught about the tokenizer: they were made with a counter that turned out wrong."""
        self._tokens_per_weight = None

    def counted_prompt(self, key: str, target_tokens: int, count: Callable[[str], int | None]) -> Prompt:
        """A prompt fitted itself, for counters that send nothing to the model (`/tokenize`); ≤ 25 counts.

        `count` includes what the chat template adds. The body depends on `key` and the run's seed only.
        """
        seed = body_seed(self.run_seed, key)
        body, head, closing = Body(self.source, seed), self._heads.next(), target_tokens >= CLOSING_FROM_TOKENS
        result = self._fit(
            body, target_tokens, lambda shape: _assemble(head, body.cut(shape), closing), count, TOKENIZE_CALLS
        )
        return _text_prompt(result.text, seed, head, target_tokens, result, "tokenize")

    def sent_prompt(self, key: str, target_tokens: int, send: Callable[[str], int | None]) -> Prompt:
        """A prompt whose length is fitted by sending at most three siblings, each with a head of its own.

        `send` gives the server's `usage.prompt_tokens`. The prompt returned has never been sent; its count is the
        sibling's until `with_usage` gives its own.
        """
        seed = body_seed(self.run_seed, key)
        body, closing = Body(self.source, seed), target_tokens >= CLOSING_FROM_TOKENS
        result = self._fit(
            body, target_tokens, lambda shape: _assemble(self._heads.next(), body.cut(shape), closing), send, SENDS
        )
        head = self._heads.next()
        text = _assemble(head, body.cut(result.shape), closing)
        return _text_prompt(text, seed, head, target_tokens, result, "sibling_usage")

    def sibling(self, prompt: Prompt, order: int = 0) -> Prompt:
        """A prompt of the same length with a new head; `order` > 0 lets the body begin with another paragraph.

        The way to one prompt a stream where counting is dear. The length holds as far as the tokenizer does not join
        paragraphs; `with_usage` tells. Raises ValueError for a prompt of token ids (make another one).
        """
        if prompt.shape is None:
            raise ValueError("a prompt of token ids has no siblings: make another with ids_prompt")
        head = self._heads.next()
        body = _turned(Body(self.source, prompt.seed).cut(prompt.shape), order)
        text = _assemble(head, body, prompt.asked_tokens >= CLOSING_FROM_TOKENS)
        known = prompt.counted_by != "estimate"
        return replace(
            prompt, text=text, order=order, head=head, sha256=_sha256_text(text), fit_calls=0,
            counted_by="sibling_usage" if known else "estimate",
        )  # fmt: skip

    def ids_prompt(self, key: str, target_tokens: int, tokenize: Callable[[str], Sequence[int] | None]) -> Prompt:
        """Exactly `target_tokens` ids: tokenised text, cut to the length, closing request included.

        Raises ValueError where the server does not tokenise, or where its tokens do not follow the text's length.
        """
        seed = body_seed(self.run_seed, key)
        head, body = self._heads.next(), Body(self.source, seed)
        closing: Sequence[int] = []
        if target_tokens >= CLOSING_FROM_TOKENS:
            closing = _ids_or_raise(tokenize("\n\n" + CLOSING))
            if len(_ids_or_raise(tokenize(head))) + len(closing) > target_tokens // 2:
                closing = []  # a vocabulary of bytes: the beginning, which was never sent before, must stay whole
        n_words = target_tokens
        for calls in range(1, 5):
            ids = _ids_or_raise(tokenize(_assemble(head, body.cut(Shape(n_words)), closing=False)))
            if len(ids) >= target_tokens - len(closing):
                cut = (*ids[: target_tokens - len(closing)], *closing)
                return Prompt(
                    text=None, token_ids=cut, seed=seed, order=0, head=head, shape=None,
                    sha256=hashlib.sha256(",".join(map(str, cut)).encode()).hexdigest(), asked_tokens=target_tokens,
                    counted_tokens=len(cut), counted_by="token_ids", fit_calls=calls,
                )  # fmt: skip
            n_words *= 2
        raise ValueError(f"the server's tokenizer gave {len(ids)} tokens for {n_words // 2} words: ids cannot be used")

    def _fit(
        self,
        body: Body,
        target: int,
        make: Callable[[Shape], str],
        count: Callable[[str], int | None],
        max_calls: int,
    ) -> FitResult:
        guess = self._tokens_per_weight
        result = fit(target, make, count, max_calls=max_calls, ruler=body, tokens_per_weight=guess)
        # Short prompts say little about the slope; a long one is a better guess for all.
        if result.tokens_per_weight is not None and (self._tokens_per_weight is None or target >= 512):
            self._tokens_per_weight = result.tokens_per_weight
        return result


def _ids_or_raise(ids: Sequence[int] | None) -> Sequence[int]:
    if not ids:
        raise ValueError("the server did not tokenise the text: use text prompts instead of token ids")
    return ids


def _sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text_prompt(text: str, seed: int, head: str, target: int, result: FitResult, by: CountedBy) -> Prompt:
    return Prompt(
        text=text, token_ids=None, seed=seed, order=0, head=head, shape=result.shape, sha256=_sha256_text(text),
        asked_tokens=target, counted_tokens=result.counted_tokens,
        counted_by="estimate" if result.counted_tokens is None else by,
        fit_calls=result.calls, fit_reason=result.reason,
    )  # fmt: skip
