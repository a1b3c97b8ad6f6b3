"""The rig's own tokenizer and the text it writes. Deterministic, the same on every machine, nothing to download.

A piece is at most 8 characters: a word in runs of 6 letters with the space before it, three digits, three signs, or
white space. As with BPE, where one piece ends depends on the text around it: "wor" + "ld" are two tokens, "world" one.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import accumulate

_PIECE = re.compile(r" ?[^\W\d_]{1,6}|\d{1,3}| ?[^\w\s]{1,3}|_{1,4}|\s{1,8}|.", re.DOTALL)
_SLICE_CHARS = 4_096  # 0.1 to 0.2 ms of work
_LONGEST_TEXT = 4096  # tokens in one event
FIRST_WORD_ID = 256
WORD_IDS = 131_072


def pieces(text: str) -> list[str]:
    """The tokens of a text; joined they are the text again."""
    return _PIECE.findall(text)


def count(text: str) -> int:
    return len(_PIECE.findall(text))


def token_id(piece: str) -> int:
    """A number for a piece; two pieces may share one, a piece never has two."""
    return FIRST_WORD_ID + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % WORD_IDS


def pieces_in_slices(text: str) -> Iterator[list[str]]:
    """The pieces of a long text, a slice at a time, so that a server can send tokens in between.

    A slice's last piece is cut again with the next: whatever ends before a slice does is not changed by what follows.
    """
    at, size = 0, len(text)
    while at < size:
        end = min(at + _SLICE_CHARS, size)
        words: list[str] = _PIECE.findall(text, at, end)
        if end < size:
            end -= len(words.pop())
        at = end
        yield words


_NOUNS, _VERBS, _ADJECTIVES, _JOINS, _PLACES = (
    line.split(",")
    for line in (
        "harbor,lantern,garden,river,engine,window,village,teacher,orchard,bridge,market,kettle,compass,signal,meadow,"
        "ladder,needle,pocket,copper,basket,feather,thunder,canyon,pilot,harvest,mirror,ribbon,saddle,timber,velvet,"
        "whistle,anchor,blanket,candle,desert,ember,falcon,glacier,hammer,island,jacket,kitchen,lizard,monsoon,notebook,"
        "ocean,pepper,quarry,rocket,sailor,tunnel,umbrella,valley,walnut,yarn,zephyr,archive,barrel,chimney,drawer",
        "keeps,carries,follows,measures,repairs,answers,paints,gathers,counts,remembers,crosses,borrows,watches,"
        "builds,plants,divides,compares,opens,turns,visits,records,softens,wakes,studies,trades,lifts",
        "quiet,narrow,bright,heavy,patient,distant,amber,hollow,gentle,rapid,woven,sudden,plain,frozen,curious,"
        "golden,rough,silver,early,simple,broad,careful,faded,humble,steady,warm,crooked,ancient",
        "and,while,because,although,before,until,unless,after,since,where",
        "near the old mill,under a low roof,beside the station,in late autumn,at the edge of town,on the third day,"
        "behind the library,across the frozen lake,without a word,for seven years,through the fog,along the coast",
    )
)


def _clause(rng: random.Random) -> str:
    subject = f"the {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"
    return f"{subject} {rng.choice(_VERBS)} {rng.choice(('a', 'the', 'every', 'another'))} {rng.choice(_NOUNS)}"


def sentence(rng: random.Random) -> str:
    """One English-like sentence, starting with a space."""
    text = _clause(rng)
    if rng.random() < 0.5:
        text += f" {rng.choice(_PLACES)}"
    if rng.random() < 0.5:
        text += f", {rng.choice(_JOINS)} {_clause(rng)}"
    return f" {text[0].upper()}{text[1:]}{rng.choice(('.', '.', '.', '!', '?'))}"


class Ring:
    """About 65,000 tokens of text in a circle; every answer is a stretch of it, from a start of its own.

    A stretch tokenises to exactly its own pieces, since each piece but the first begins where the one before ends and
    starts are set where a sentence begins.
    """

    def __init__(self, words: list[str], starts: list[int]) -> None:
        self.pieces = words
        self.starts = starts
        self.ids = [token_id(piece) for piece in words]
        self.size = len(words)
        safe = [json.dumps(piece)[1:-1].encode() for piece in words]
        safe += safe[:_LONGEST_TEXT] * (1 + _LONGEST_TEXT // len(safe))
        self._bytes = b"".join(safe)
        self._ends = [0, *accumulate(map(len, safe))]

    @classmethod
    @cache
    def of_sentences(cls, seed: int, tokens: int = 65_536) -> Ring:
        """Made once for each seed: it takes a quarter of a second."""
        rng = random.Random(seed)
        words: list[str] = []
        starts: list[int] = []
        while len(words) < tokens:
            starts.append(len(words))
            words.extend(pieces(sentence(rng)))
        return cls(words, starts)

    @classmethod
    def of_phrase(cls, phrase: str) -> Ring:
        """The same phrase again and again."""
        return cls(pieces(phrase) or [" again"], [0])

    def start(self, number: int) -> int:
        """Where the answer with this number begins; neighbours lie far apart."""
        return self.starts[number * 7_919 % len(self.starts)]

    def text(self, at: int, n: int) -> bytes:
        """n ≤ 4096 tokens from position `at`, escaped to stand inside JSON quotes."""
        at %= self.size
        return self._bytes[self._ends[at] : self._ends[at + n]]

    def token_ids(self, at: int, n: int) -> list[int]:
        return [self.ids[i % self.size] for i in range(at, at + n)]
