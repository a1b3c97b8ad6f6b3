"""A seeded generator of text that reads like text, and a corpus file as the other source.

The same seed gives the same text on every machine and Python version: the only randomness is
`random.Random(seed).random()`, whose sequence Python promises to keep, and a choice is `list[int(r() * len(list))]`.
Words come in topics that stay together for a few paragraphs, because speculative decoding, MoE routing and
n-gram drafts behave differently on word salad. Paragraphs are separated by one empty line and hold none inside.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from flatout.prompts import words

VERSION: Final = 1
"""Rises whenever the same seed would give another text."""

MIN_CORPUS_CHARS: Final = 2_000
_PIECE: Final = r".{1,1500}(?=\s|$)\s?|\S{1,1500}"

Rand = Callable[[], float]
Lexicon = dict[str, Sequence[str]]
Pattern = tuple[str, tuple[str, ...]]


class Source(Protocol):
    """Where prompt text comes from: endless paragraphs, the same for the same seed."""

    @property
    def name(self) -> str:
        """What the record says: `generated/1`, or `corpus:` with the file's name and hash."""

    def paragraphs(self, seed: int) -> Iterator[str]:
        """Endless paragraphs without empty lines inside; equal seeds give equal sequences."""


def _patterns(*texts: str) -> tuple[Pattern, ...]:
    """`the {n} was {v}` → (`the %s was %s`, (`n`, `v`)): parsed once, filled in with one `%`."""
    return tuple(
        (re.sub(r"\{\w+\}", "%s", text.replace("%", "%%")), tuple(re.findall(r"\{(\w+)\}", text))) for text in texts
    )


_OPEN: Final = _patterns("", "", "", "", "{time}, ", "{opener}, ", "{opener}, ", "in the {pl}, ", "near the {pl}, ")
_SUBJECT: Final = _patterns(
    "the {a} {n}", "the {p}", "the {a} {p}", "{first} {last}", "{first}", "the {p} from {town}", "{det} {n}", "our {p}",
    "{num} {ns}", "the {p} and {det} {p}", "{det} {adj} {n}", "{first} the {p}", "the {abs}", "the {n} of the {p}",
    "no {p}", "what remained of the {n}",
)  # fmt: skip
_PREDICATE: Final = _patterns(
    "{v} the {n}", "{v} {det} {a} {n}", "{v} the {n} and {v} the {n}", "{adv} {v} the {ns}", "never {v} a single {n}",
    "was {adv} {v}", "{v} the {n} near the {pl}", "stood in the {pl}", "{v} {num} {ns}", "had no {abs} for it",
    "depended on the {abs} of the {n}", "cost {num} {unit}", "looked {adj} and {a}", "turned out to be {adj}",
    "{v} it {adv}", "{v} the {a} {n} with {det} {n}", "could not explain the {abs}", "seemed {adj}", "made {det} {abs}",
    "gave the {p} {det} {n}", "went to {town}", "showed the {ns} to {first}", "measured {num}.{digit} {unit}",
    "kept {det} {abs} in mind", "was as {adj} as the {n}",
)  # fmt: skip
_TAIL: Final = _patterns(
    "", "", "", "", "", " {time}", " {time}", " {adv}", " for {num} {unit}", ", not the {n}", " without the {n}",
    " ({num} {unit})", ", as {first} {said}", " instead of the {n}", " near the {pl}", "; nobody {said} why",
)  # fmt: skip
_SPOKEN: Final = _patterns(
    "Where is the {n}?", "I have {adv} {v} the {a} {n}.", "You mean the {n} in the {pl}?", "No, the {p} {v} it {time}.",
    "That {abs} was {adj}, and you know it.", "How many {ns} did {first} bring?", "{num}, perhaps more.", "Not {adv}.",
    "Then tell the {p} that the {n} is {adj}.", "If the {n} is {a}, we should wait.", "Who {v} the {ns}?",
    "Nobody in {town} would agree.", "It took {num} {unit}, {adv}.", "Give me the {n} and {det} {n}.", "Why {adj}?",
    "My {abs} is {adj}: leave the {pl} alone.", "Please don't touch the {a} {n}!", "The {p} said {num} {unit}.",
)  # fmt: skip
_ITEM: Final = _patterns(
    "{n}: {num} {unit}, {adj}", "the {a} {n} ({first} {last})", "{num} {ns} for the {pl}", "check the {n} {adv}",
    "{adj} {abs}, see the {n}", "ask the {p} about the {a} {n}", "{n} or {n}, whichever is {adj}", "{v} {time}",
    "{first}: {n}, {n}, {n}", "no {n} without {det} {abs}", "{town}, {num} {unit}",
)  # fmt: skip
_HEADING: Final = _patterns(
    "## The {a} {n}", "## {abs} and {abs}", "### Notes on the {n}", "## {town}, {num}", "### Why the {p} {v} the {n}",
)  # fmt: skip
_LEAD: Final = _patterns(
    "Before the {p} can begin:", "The {n} in short:", "What {first} {v}:", "Things to remember about the {ns}:",
    "From the {pl} came {num} {ns}:", "The order of the {n}:", "Needed {time}:",
)  # fmt: skip
_CODE_LINE: Final = _patterns(
    "{i} = {j}.{f}({num})", "if {i} > {num}:\n        {j} += {i}", "for {i} in {f}({j}):\n        {f}({i}, {num})",
    '{i}["{n}"] = {j} * {num}.{digit}', "{f}({i}, limit={num})", 'log.info("{n} %d of {num}", {j})',
    'assert {i} != {j}, "{adj} {abs}"', "while {i}.{f}():\n        {i} -= {digit}", "# the {n} is {adj} {time}",
    "{i}, {j} = {j}, {f}({i})", 'with {f}("{n}.txt") as {i}:\n        {j} = {i}.read()',
)  # fmt: skip
_CODE_HEAD: Final = _patterns("def {f}({i}, {j}={num}):\n    ", 'def {f}({i}):\n    """{a} {n}."""\n    ')
_LOG_LINE: Final = _patterns(
    "{clock} INFO  {i} {v} in {num} ms", "{clock} WARN  {n} {digit} is {adj} ({abs} {num})",
    "{clock} ERROR {f}: {i} at line {num}", "{clock} DEBUG {f}({j}) -> {num}.{digit}",
)  # fmt: skip
_JSON_FIELD: Final = _patterns(
    '"{n}": {num}', '"{i}": "{a} {n}"', '"{n}": [{num}, {num}, {digit}]', '"{i}": {digit}.{num}', '"{n}": "{first}"',
    '"{abs}": {"{n}": {num}, "{a}": false}',
)  # fmt: skip
_CELL: Final = _patterns("{n}", "{num}", "{num}.{digit}", "{a}", "{num} {unit}", "{first}", "{town}", "{adj} {n}")


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


@cache
def _common() -> Lexicon:
    ends = [b + c for b in words.SYLLABLES_B for c in words.SYLLABLES_C]
    return {
        "adj": words.ADJECTIVES, "abs": words.ABSTRACTS, "adv": words.ADVERBS, "time": words.TIMES,
        "opener": words.OPENERS, "said": words.SAID, "unit": words.UNITS, "first": words.FIRST_NAMES,
        "det": ["the", "this", "that", "another", "every", "one", "their", "his", "her", "its", "each", "some"],
        "last": [a + end for a in words.SYLLABLES_A for end in ends],
        "town": [a + c for a in words.SYLLABLES_A for c in words.SYLLABLES_C],
        "digit": [str(n) for n in range(2, 10)],
        # Small numbers are the most frequent in text, and long ones still occur.
        "num": [str(n) for n in (*range(2, 40), *range(40, 100, 3), *range(100, 1000, 17), *range(1000, 9999, 311))],
        "clock": [f"{h:02}:{m:02}:{(h * 7 + m * 13) % 60:02}" for h in range(24) for m in range(60)],
    }  # fmt: skip


@cache
def _lexicons() -> tuple[Lexicon, ...]:
    """One lexicon a topic: slot name → words."""
    made = []
    for people, things, places, verbs, adjectives in words.TOPICS.values():
        names = [noun.replace("-", "_") for noun in things.split()]
        short = [verb[:-2] if verb.endswith("ed") else verb for verb in verbs.split()]
        topic: Lexicon = {
            "p": people.split(), "n": things.split(), "pl": places.split(), "v": verbs.split(),
            "a": adjectives.split(), "ns": [_plural(noun) for noun in things.split()],
            "i": [f"{a}_{b}" for a in names for b in ("count", "id", "list", "size", "total")] + names,
            "j": [f"{a}_{b}" for a in adjectives.replace("-", "_").split() for b in names[::3]] + names,
            "f": [f"{a}_{b}" for a in short for b in names[::2]],
        }  # fmt: skip
        made.append(_common() | topic)
    return tuple(made)


def _fill(r: Rand, lex: Lexicon, *choices: tuple[Pattern, ...]) -> str:
    """One pattern of each choice, put together, each slot filled from the lexicon."""
    template = ""
    values: list[str] = []
    for patterns in choices:
        part, slots = patterns[int(r() * len(patterns))]
        template += part
        for slot in slots:
            options = lex[slot]
            values.append(options[int(r() * len(options))])
    return template % tuple(values)


_SPACE: Final = _patterns(" ")


def _sentence(r: Rand, lex: Lexicon) -> str:
    text = _fill(r, lex, _OPEN, _SUBJECT, _SPACE, _PREDICATE, _TAIL)
    if r() < 0.35:
        link = words.LINKS[int(r() * len(words.LINKS))]
        text += f", {link} {_fill(r, lex, _SUBJECT, _SPACE, _PREDICATE)}"
    return text[0].upper() + text[1:] + "."


def _prose(r: Rand, lex: Lexicon) -> str:
    return " ".join([_sentence(r, lex) for _ in range(2 + int(r() * 7))])


def _dialogue(r: Rand, lex: Lexicon) -> str:
    lines = []
    speakers = [_fill(r, lex, _patterns("{first}", "the {p}")) for _ in range(2)]
    for turn in range(3 + int(r() * 5)):
        verb = words.SAID[int(r() * len(words.SAID))]
        said = _fill(r, lex, _SPOKEN)
        after = f" {_fill(r, lex, _SPOKEN)}" if r() < 0.4 else ""
        if r() < 0.6:
            said = said[:-1] + "," if said.endswith(".") else said
            lines.append(f'"{said}" {speakers[turn % 2]} {verb}.' + (f' "{after[1:]}"' if after else ""))
        else:
            lines.append(f'"{said}{after}"')
    return "\n".join(lines)


def _list(r: Rand, lex: Lexicon) -> str:
    numbered = r() < 0.4
    items = [_fill(r, lex, _ITEM) for _ in range(3 + int(r() * 6))]
    marks = [f"{n}. " if numbered else "- " for n in range(1, len(items) + 1)]
    return "\n".join([_fill(r, lex, _LEAD), *(mark + item for mark, item in zip(marks, items, strict=True))])


def _table(r: Rand, lex: Lexicon) -> str:
    columns = [_CELL[int(r() * len(_CELL))] for _ in range(2 + int(r() * 3))]
    head = [_fill(r, lex, _patterns("{n}", "{abs}", "{a} {n}")) for _ in range(len(columns) + 1)]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for _ in range(3 + int(r() * 6)):
        cells = [_fill(r, lex, _patterns("{n}", "{first} {last}")), *(_fill(r, lex, (cell,)) for cell in columns)]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _code(r: Rand, lex: Lexicon) -> str:
    kind = r()
    if kind < 0.5:
        lines = [_fill(r, lex, _CODE_LINE) for _ in range(2 + int(r() * 6))]
        result = _fill(r, lex, _patterns("return {i}", "return {f}({i}, {num})", "return {i} - {j}"))
        return "```python\n" + _fill(r, lex, _CODE_HEAD) + "\n    ".join([*lines, result]) + "\n```"
    if kind < 0.75:
        fields = ",\n  ".join([_fill(r, lex, _JSON_FIELD) for _ in range(2 + int(r() * 6))])
        return "```json\n{\n  " + fields + "\n}\n```"
    return "```\n" + "\n".join([_fill(r, lex, _LOG_LINE) for _ in range(3 + int(r() * 6))]) + "\n```"


def _heading(r: Rand, lex: Lexicon) -> str:
    return _fill(r, lex, _HEADING)


_KINDS: Final = (_prose,) * 13 + (_dialogue, _dialogue, _list, _list, _code, _table, _heading)


class Generated:
    """Our own generator; needs no file and no network."""

    @property
    def name(self) -> str:
        return f"generated/{VERSION}"

    def paragraphs(self, seed: int) -> Iterator[str]:
        """Raises ValueError where the seed is negative (Python seeds −n like n)."""
        if seed < 0:
            raise ValueError(f"a text seed must not be negative, and it is {seed}")
        r = random.Random(seed).random
        lexicons = _lexicons()
        while True:
            lex = lexicons[int(r() * len(lexicons))]
            for _ in range(3 + int(r() * 6)):
                yield _KINDS[int(r() * len(_KINDS))](r, lex)


class Corpus:
    """A text file as the source: each seed starts at another paragraph and goes on from there, around the end.

    Raises ValueError with what to do where the file is not UTF-8 text or too short to be a corpus; OSError where it
    cannot be read. A prompt longer than the file repeats it: `chars` lets the caller warn.
    """

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        try:
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path.name} is no UTF-8 text (byte {error.start}): give --corpus a plain text file"
            ) from None
        parts = [part.strip("\n") for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
        # A file that is one long line must still have many places to start from.
        self._parts = [piece.rstrip() for part in parts for piece in re.findall(_PIECE, part, re.DOTALL)]
        self.chars = sum(len(part) + 2 for part in self._parts)
        """Length in characters, as used: one empty line between paragraphs."""
        if self.chars < MIN_CORPUS_CHARS:
            raise ValueError(
                f"{path.name} has {self.chars} characters of text, a corpus needs {MIN_CORPUS_CHARS} at least: "
                "its prompts would repeat themselves"
            )
        self._name = f"corpus:{path.name} sha256:{hashlib.sha256(data).hexdigest()[:16]}"

    @property
    def name(self) -> str:
        return self._name

    def paragraphs(self, seed: int) -> Iterator[str]:
        """Raises ValueError where the seed is negative (Python seeds −n like n)."""
        if seed < 0:
            raise ValueError(f"a text seed must not be negative, and it is {seed}")
        at = int(random.Random(seed).random() * len(self._parts))
        while True:
            yield self._parts[at]
            at = (at + 1) % len(self._parts)


def generate(seed: int, n_chars: int) -> str:
    """At least `n_chars` characters of generated text, whole paragraphs; a shorter text is a prefix of a longer one."""
    parts: list[str] = []
    length = 0
    for part in Generated().paragraphs(seed):
        parts.append(part)
        length += len(part) + 2
        if length >= n_chars + 2:
            break
    return "\n\n".join(parts)
