"""Prompts: the text reads like text and never changes, heads are new, lengths are exact for any kind of tokenizer."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.prompts.book import (
    CLOSING,
    CLOSING_FROM_TOKENS,
    HEAD_BITS,
    Body,
    Heads,
    PromptBook,
    body_seed,
)
from flatout.prompts.fit import SENDS, TAILS, TOKENIZE_CALLS, Shape, WordRuler, fit
from flatout.prompts.text import Corpus, Generated, generate

_PIECES = re.compile(r" ?[^\W\d_]+|\d{1,3}| ?[^\s\w]+\n*|_|\s+")


def bpe_like(text: str) -> int:
    """Words with the space before them, marks with the line ends after them; long words are several tokens."""
    return sum(-(-len(match.group()) // 9) for match in _PIECES.finditer(text))


def characters(text: str) -> int:
    return len(text)


def utf8_bytes(text: str) -> int:
    return len(text.encode())


def joins_words(text: str) -> int:
    """Joins neighbouring words by a rule of their lengths: what comes before changes all that follows."""
    lengths = [len(word) for word in re.findall(r"\S+\s*", text)]
    count = at = 0
    while at < len(lengths):
        at += 2 if at + 1 < len(lengths) and (lengths[at] + lengths[at + 1]) % 3 == 0 else 1
        count += 1
    return count


def quarters(text: str) -> int:
    """The rule of thumb some servers use in place of a tokenizer."""
    return len(text) // 4


PINNED = "7c19136f2bad8d686d9c5ac1e5cee6486f8a40cfb04a61f3c17de2328530bb94"
PINNED_SEED = 3296066581885835145

TOKENIZERS = {f.__name__: f for f in (bpe_like, characters, utf8_bytes, joins_words, quarters)}


# --- the generator


def test_generated_text_never_changes() -> None:
    """Pinned: another hash means that old runs' prompts cannot be made again, so `prompt_text.VERSION` must rise."""
    assert hashlib.sha256(generate(1, 200_000).encode()).hexdigest() == PINNED
    assert Generated().name == "generated/1"


@given(st.integers(0, 2**63 - 1), st.integers(1, 5_000), st.integers(1, 5_000))
@settings(max_examples=50, deadline=None)
def test_shorter_text_is_a_prefix(seed: int, a: int, b: int) -> None:
    short, long = sorted((generate(seed, a), generate(seed, b)), key=len)
    assert long.startswith(short)
    assert len(generate(seed, a)) >= a
    assert "\n\n\n" not in long


def test_text_is_far_from_repeating() -> None:
    words = generate(2, 1_250_000).split()[:200_000]
    assert len(words) == 200_000
    grams = [tuple(words[i : i + 8]) for i in range(len(words) - 7)]
    assert 1 - len(set(grams)) / len(grams) < 0.02
    text = " ".join(words)
    ratio = len(gzip.compress(text.encode())) / len(text.encode())
    # English prose has about 0.3 to 0.45; random letters 0.6 and more, a loop below 0.1.
    assert 0.25 < ratio < 0.5


def test_text_has_every_kind_of_part() -> None:
    text = generate(3, 200_000)
    for part in ("```python", "```json", "\n|---", '"\n"', "\n- ", "\n1. ", "## "):
        assert part in text, part
    assert text.count("```") % 2 == 0


def test_seeds_give_different_texts() -> None:
    starts = {generate(seed, 200) for seed in range(500)}
    assert len(starts) == 500
    with pytest.raises(ValueError, match="negative"):
        next(Generated().paragraphs(-1))


def test_a_long_prompt_is_made_in_bounded_time() -> None:
    """A guard against quadratic growth, far above what it takes (about 0.1 s)."""
    start = time.perf_counter()
    assert len(Body(Generated(), 4).cut(Shape(100_000))) > 500_000
    assert time.perf_counter() - start < 10


# --- a corpus


def _corpus(tmp_path: Path, text: str) -> Corpus:
    path = tmp_path / "corpus.txt"
    path.write_bytes(text.encode())
    return Corpus(path)


def test_corpus_starts_where_the_seed_says_and_goes_around(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {n}. " + f"word{n} " * 20 for n in range(100)]
    corpus = _corpus(tmp_path, "\r\n \r\n".join(paragraphs))
    got = list(itertools.islice(corpus.paragraphs(7), 250))
    assert got == list(itertools.islice(corpus.paragraphs(7), 250))
    assert got[:100] == got[100:200]
    assert sorted(got[:100]) == sorted(part.rstrip() for part in paragraphs)
    assert len({next(corpus.paragraphs(seed)) for seed in range(200)}) > 50
    assert "corpus.txt" in corpus.name and str(tmp_path) not in corpus.name


def test_corpus_of_one_long_line_has_many_starts(tmp_path: Path) -> None:
    line = " ".join(f"w{n}" for n in range(20_000))
    corpus = _corpus(tmp_path, line)
    assert len({next(corpus.paragraphs(seed)) for seed in range(100)}) > 30
    joined = " ".join(itertools.islice(corpus.paragraphs(0), 200))
    assert "w100 w101 w102" in joined
    assert len(_corpus(tmp_path, "x" * 10_000)._parts) == 7


def test_corpus_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"corpus.txt has 9 characters .* needs 2000"):
        _corpus(tmp_path, "a word.")
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG" + bytes(range(256)) * 20)
    with pytest.raises(ValueError, match=r"picture.png is no UTF-8 text"):
        Corpus(path)
    with pytest.raises(FileNotFoundError):
        Corpus(tmp_path / "absent")


@given(st.binary(max_size=6_000))
@settings(max_examples=50, deadline=None)
def test_any_file_is_a_corpus_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("corpus") / "any"
    path.write_bytes(data)
    try:
        corpus = Corpus(path)
    except ValueError as error:
        assert "any" in str(error)
        return
    for part in itertools.islice(corpus.paragraphs(1), 20):
        assert part.strip() and "\n\n" not in part


# --- heads


def test_heads_differ_at_the_front_and_have_one_shape() -> None:
    heads = Heads(salt=12345)
    made = [heads.next() for _ in range(4096)]
    assert len({" ".join(head.split()[:2]) for head in made}) == 4096
    assert {len(head.split()) for head in made} == {10}
    assert all(len({head.split()[0] for head in made[i : i + 64]}) == 64 for i in range(0, 4096, 64))


@given(st.integers(0, 2**HEAD_BITS - 1), st.integers(0, 2**HEAD_BITS - 1))
@settings(max_examples=30, deadline=None)
def test_another_run_makes_other_heads(salt: int, other: int) -> None:
    first, second = Heads(salt), Heads(other)
    made, again = {first.next() for _ in range(300)}, {second.next() for _ in range(300)}
    assert len(made) == 300
    if salt != other and abs(salt - other) not in _STEPS:
        assert not made & again


_STEPS = {(n * 0x2545F4914F6CDD1D) % (1 << HEAD_BITS) for n in range(-300, 301)}


def test_two_books_of_one_seed_share_bodies_and_no_head() -> None:
    one, two = PromptBook(5), PromptBook(5)
    a, b = one.counted_prompt("x", 500, bpe_like), two.counted_prompt("x", 500, bpe_like)
    assert one.salt != two.salt
    assert a.text is not None and b.text is not None
    assert a.head != b.head and a.sha256 != b.sha256
    assert a.text.startswith(a.head + "\n\n")
    shared = len(a.text) // 2
    assert a.text[len(a.head) : shared] == b.text[len(b.head) : shared + len(b.head) - len(a.head)]
    again = PromptBook(5, salt=one.salt).counted_prompt("x", 500, bpe_like)
    assert again == a


# --- exact lengths


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_length_is_exact_where_counting_is_cheap(name: str) -> None:
    tokenizer, book, rng = TOKENIZERS[name], PromptBook(9, salt=1), random.Random(3)
    for n in range(150):
        target, template = rng.randint(200, 4_000), rng.randint(0, 30)
        prompt = book.counted_prompt(str(n), target, lambda text, extra=template: tokenizer(text) + extra)
        assert prompt.text is not None
        assert prompt.counted_tokens == tokenizer(prompt.text) + template
        assert prompt.exact, (target, prompt.shape, prompt.fit_reason)
        assert prompt.fit_calls <= TOKENIZE_CALLS and prompt.counted_by == "tokenize"


def test_lengths_fitted_by_three_sends_are_exact() -> None:
    """The prompt itself is never sent for the fit, and its own count is then as asked."""
    rng, exact, runs = random.Random(5), 0, 200
    for n in range(runs):
        book = PromptBook(n)
        target, template, sent = rng.randint(64, 6_000), rng.randint(0, 30), []

        def send(text: str, extra: int = template, log: list[str] = sent) -> int:
            log.append(text)
            return bpe_like(text) + extra

        prompt = book.sent_prompt("x", target, send)
        assert prompt.text is not None
        assert 1 <= len(sent) == prompt.fit_calls <= SENDS
        heads = {text.split("\n\n")[0] for text in sent} | {prompt.head}
        assert len(heads) == len(sent) + 1
        real = bpe_like(prompt.text) + template
        assert abs(real - target) <= max(2, target * 0.02), (target, real)
        exact += real == target
        known = prompt.with_usage(real)
        assert (known.counted_tokens, known.counted_by, known.exact) == (real, "usage", real == target)
    assert exact >= runs * 0.95


@given(
    st.sampled_from(sorted(TOKENIZERS)),
    st.integers(1, 3_000),
    st.integers(0, 200),
    st.integers(0, 2**32),
    st.integers(1, TOKENIZE_CALLS),
)
@settings(max_examples=150, deadline=None)
def test_a_fit_always_ends_with_a_real_count(name: str, target: int, template: int, seed: int, calls: int) -> None:
    tokenizer = TOKENIZERS[name]
    body, asked = Body(Generated(), seed), []

    def count(text: str) -> int:
        asked.append(text)
        return tokenizer(text) + template

    result = fit(target, lambda shape: "Head. " + body.cut(shape), count, max_calls=calls, ruler=body)
    assert len(asked) == result.calls <= calls
    assert len(set(asked)) == len(asked), "a text was counted twice"
    assert result.text in asked
    assert result.counted_tokens == tokenizer(result.text) + template
    assert result.exact == (result.counted_tokens == target) == (result.reason is None)
    assert all(abs(tokenizer(text) + template - target) >= abs(result.counted_tokens - target) for text in asked)


@given(st.integers(1, 2_000), st.lists(st.integers(0, 4_000) | st.none(), min_size=30, max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_counter_that_makes_no_sense_does_no_harm(target: int, answers: list[int | None]) -> None:
    replies = iter(answers)
    result = fit(target, lambda shape: "x" * (shape.words + 1), lambda text: next(replies), ruler=WordRuler())
    assert result.calls <= TOKENIZE_CALLS
    assert result.counted_tokens is None or result.counted_tokens in answers
    assert result.exact == (result.counted_tokens == target)


def test_a_prompt_that_cannot_be_so_short_says_so() -> None:
    prompt = PromptBook(1).counted_prompt("x", 5, lambda text: bpe_like(text) + 40)
    assert prompt.exact is False
    assert prompt.counted_tokens is not None and prompt.counted_tokens > 40
    assert prompt.fit_reason is not None and "shortest prompt has" in prompt.fit_reason


def test_a_server_that_cannot_count_leaves_an_estimate() -> None:
    prompt = PromptBook(1).counted_prompt("x", 1_000, lambda text: None)
    assert (prompt.counted_tokens, prompt.counted_by, prompt.exact) == (None, "estimate", None)
    assert prompt.text is not None and 700 < bpe_like(prompt.text) < 1_400
    with pytest.raises(ValueError, match="must be 1 or more"):
        fit(0, lambda shape: "", len)


def test_siblings_are_as_long_and_begin_anew() -> None:
    book = PromptBook(3)
    prompt = book.sent_prompt("x", 3_000, bpe_like)
    siblings = [book.sibling(prompt, order=n) for n in range(20)]
    texts = [prompt.text or "", *(sibling.text or "" for sibling in siblings)]
    assert {bpe_like(text) for text in texts} == {prompt.counted_tokens}
    assert len({text.split("\n\n")[0] for text in texts}) == 21
    assert len({text.split("\n\n")[1] for text in texts[1:]}) > 10
    assert all(sorted(text.split("\n\n")[1:]) == sorted(texts[0].split("\n\n")[1:]) for text in texts)
    assert {sibling.counted_by for sibling in siblings} == {"sibling_usage"}


def test_closing_request_stands_last_and_only_in_longer_prompts() -> None:
    book = PromptBook(1)
    long, short = (book.counted_prompt("x", n, bpe_like).text or "" for n in (CLOSING_FROM_TOKENS, 100))
    assert long.endswith(CLOSING)
    assert CLOSING not in short


@given(st.integers(0, 3_000), st.integers(0, 40), st.integers(0, len(TAILS) - 1), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_a_cut_body_grows_with_its_shape(n_words: int, pads: int, tail: int, seed: int) -> None:
    grown, fresh = Body(Generated(), seed), Body(Generated(), seed)
    grown.cut(Shape(5_000))
    text = fresh.cut(Shape(n_words, pads, tail))
    assert text == grown.cut(Shape(n_words, pads, tail))
    assert text.count("```") % 2 == 0
    assert len(fresh.cut(Shape(n_words + 1)).split()) > len(fresh.cut(Shape(n_words)).split())
    assert grown.words(grown.weight(n_words)) == n_words


# --- token ids


@given(st.integers(1, 5_000), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_token_ids_are_exactly_as_many(target: int, seed: int) -> None:
    def tokenize(text: str) -> list[int]:
        return list(text.encode())

    prompt = PromptBook(seed).ids_prompt("x", target, tokenize)
    assert prompt.token_ids is not None and prompt.text is None
    assert len(prompt.token_ids) == target == prompt.counted_tokens
    assert prompt.counted_by == "token_ids"
    assert bytes(prompt.token_ids).startswith(prompt.head.encode()[:target])
    if target >= max(CLOSING_FROM_TOKENS, 2 * len(f"{prompt.head}\n\n{CLOSING}")):
        assert bytes(prompt.token_ids).endswith(CLOSING.encode())
    with pytest.raises(ValueError, match="no siblings"):
        PromptBook(1).sibling(prompt)


@pytest.mark.parametrize(
    ("tokenize", "words"), [(lambda _: None, "did not tokenise"), (lambda _: [1], "gave 1 tokens")]
)
def test_servers_without_usable_ids_are_told(tokenize: Callable[[str], list[int] | None], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PromptBook(1).ids_prompt("x", 100, tokenize)


def test_body_seed_is_stable() -> None:
    assert body_seed(1, "cold/8192/0") == PINNED_SEED
    assert body_seed(1, "cold/8192/1") != body_seed(1, "cold/8192/0") != body_seed(2, "cold/8192/0")
