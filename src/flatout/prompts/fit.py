"""Finds the text that has exactly as many tokens as asked, with a counter that only says how many a text has.

Pure logic: what counts (a `/tokenize` endpoint, or the usage of a real request) is the caller's. Tokenizers are not
additive, so nothing is computed that was not counted: the number of words is found by secant steps, the last few tokens
by small words that nearly every vocabulary holds as one token, and what stands in the result is a real count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

TOKENIZE_CALLS: Final = 25
"""Limit of counts where counting is cheap."""

SENDS: Final = 3
"""Limit where each count is a request that the server must really read."""

TAILS: Final = ("", ".", " a", " on", " and", " then", " there", ", it is", ", so far")
"""Last resort where the small words are not one token each: endings of 0 to 8 characters."""

FIRST_TOKENS_PER_WEIGHT: Final = 1.15
"""First guess for an unknown tokenizer: what generated text has with vocabularies of 32k to 131k tokens."""

FIRST_FIXED_TOKENS: Final = 45
"""First guess for what is there without any word of the body: head, closing request, chat template."""

NEAR_PADS: Final = 16
"""A gap of so many tokens is filled with small words; a larger one, with more of the body."""

LAST_PADS: Final = 48
LAST_PADS_SHARE: Final = 0.03
"""With the last count, a gap of this share of the prompt (or `LAST_PADS`) is filled so too: exactness comes first."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A length: so many words of the body, then so many small words, then one of `TAILS` (its index)."""

    words: int
    pads: int = 0
    tail: int = 0


class Ruler(Protocol):
    """An estimate of how many tokens the first words of a body are, so that few real counts are needed."""

    def weight(self, n_words: int) -> float:
        """Estimated tokens of the first `n_words` words; strictly increasing."""

    def words(self, weight: float) -> int:
        """The most words with at most this weight, 0 or more."""


class WordRuler:
    """The plainest ruler: every word counts the same."""

    def __init__(self, per_word: float = 1.5) -> None:
        self._per_word = per_word

    def weight(self, n_words: int) -> float:
        return n_words * self._per_word

    def words(self, weight: float) -> int:
        return max(0, int(weight / self._per_word))


@dataclass(frozen=True, slots=True)
class FitResult:
    """The closest text found. `counted_tokens` is the caller's count of exactly this text, None if it could not count.

    `tokens_per_weight` is the measured slope (see `Ruler`), the best first guess for the next fit with the same
    tokenizer; None where nothing was counted. `reason` says why the fit is not exact, None where it is.
    """

    shape: Shape
    text: str
    counted_tokens: int | None
    exact: bool
    calls: int
    tokens_per_weight: float | None
    reason: str | None


def fit(
    target_tokens: int,
    make_text: Callable[[Shape], str],
    count: Callable[[str], int | None],
    *,
    max_calls: int = TOKENIZE_CALLS,
    ruler: Ruler | None = None,
    tokens_per_weight: float | None = None,
) -> FitResult:
    """The text of `make_text` that `count` finds `target_tokens` long, or the closest within `max_calls` counts.

    `make_text` may put another head before the same body each time (so that a request that counts leaves nothing of
    the prompt in a cache), then the exactness holds as far as the heads are equally long. A `count` of None ends the
    search; the best result until then is returned.

    Raises ValueError where `target_tokens` or `max_calls` is below 1.
    """
    if target_tokens < 1 or max_calls < 1:
        raise ValueError(f"cannot fit {target_tokens} tokens in {max_calls} counts: both must be 1 or more")
    search = _Search(target_tokens, ruler or WordRuler(), tokens_per_weight or FIRST_TOKENS_PER_WEIGHT)
    shape: Shape | None = search.first()
    best: tuple[Shape, str, int] | None = None
    reason: str | None = None
    calls = 0
    while shape is not None:
        if calls == max_calls:
            reason = f"not exact after {calls} counts"
            break
        text = make_text(shape)
        counted = count(text)
        calls += 1
        if counted is None:
            reason = "the server could not count the prompt"
            best = best or (shape, text, -1)
            break
        if best is None or abs(counted - target_tokens) < abs(best[2] - target_tokens):
            best = (shape, text, counted)
        if counted == target_tokens:
            break
        search.note(shape, counted)
        shape = search.next(max_calls - calls)
    else:
        reason = search.why_stopped()
    assert best is not None
    return FitResult(
        shape=best[0],
        text=best[1],
        counted_tokens=best[2] if best[2] >= 0 else None,
        exact=best[2] == target_tokens,
        calls=calls,
        tokens_per_weight=search.slope(),
        reason=reason,
    )


class _Search:
    """What has been counted so far, and which shape to count next."""

    def __init__(self, target: int, ruler: Ruler, tokens_per_weight: float) -> None:
        self._target = target
        self._ruler = ruler
        self._guess = tokens_per_weight
        self._seen: dict[Shape, int] = {}
        self._spent: set[int] = set()
        """Numbers of words for which every ending was tried."""

    def first(self) -> Shape:
        return Shape(self._ruler.words(max(0.0, (self._target - FIRST_FIXED_TOKENS) / self._guess)))

    def note(self, shape: Shape, counted: int) -> None:
        self._seen[shape] = counted

    def slope(self) -> float | None:
        """Tokens per weight: between the two plain shapes furthest apart; with one, the fixed part is a guess."""
        plain = sorted((self._ruler.weight(words), n) for words, n in self._plain().items())
        if len(plain) > 1 and plain[-1][0] - plain[0][0] >= 100 and plain[-1][1] > plain[0][1]:
            return (plain[-1][1] - plain[0][1]) / (plain[-1][0] - plain[0][0])
        if plain and plain[-1][0] > 0:
            return max(0.01, (plain[-1][1] - min(FIRST_FIXED_TOKENS, plain[-1][1] // 2)) / plain[-1][0])
        return None

    def _plain(self) -> dict[int, int]:
        return {shape.words: n for shape, n in self._seen.items() if not shape.pads and not shape.tail}

    def why_stopped(self) -> str:
        least = min(self._seen.values())
        if least > self._target:
            return f"the shortest prompt has {least} tokens already"
        return "no word boundary or ending gives exactly this number of tokens"

    def next(self, calls_left: int) -> Shape | None:
        """The next shape, None where nothing is left to try; `calls_left` counts are allowed after this decision."""
        low, high = self._bracket()
        if low is not None:
            gap = self._target - self._seen[Shape(low)]
            limit = NEAR_PADS if calls_left > 1 else max(LAST_PADS, round(self._target * LAST_PADS_SHARE))
            if gap <= limit or (high is not None and high - low == 1):
                return self._ending(low) or self._other_words(low)
        return self._more_or_fewer_words(low, high, calls_left)

    def _bracket(self) -> tuple[int | None, int | None]:
        """The most words that are not too many, the fewest that are."""
        plain = self._plain()
        high = min((words for words, n in plain.items() if n > self._target), default=None)
        fitting = (w for w, n in plain.items() if n <= self._target and w not in self._spent)
        low = max((w for w in fitting if high is None or w < high), default=None)
        return low, high

    def _more_or_fewer_words(self, low: int | None, high: int | None, calls_left: int) -> Shape | None:
        """A secant step that aims a little low, since small words can fill a gap but nothing can be taken away."""
        known = min((w for w in (low, high) if w is not None), key=lambda w: abs(self._target - self._seen[Shape(w)]))
        error = self._target - self._seen[Shape(known)]
        rate = self.slope() or self._guess
        if low is not None and high is not None:
            gained = self._seen[Shape(high)] - self._seen[Shape(low)]
            rate = max(0.01, gained / (self._ruler.weight(high) - self._ruler.weight(low)))
        # The fewer counts are left, the surer the next one must be to lie below.
        margin = 0.0 if calls_left == 1 else 2 + abs(error) * (0.03 if calls_left > 2 else 0.06)
        words = self._ruler.words(self._ruler.weight(known) + (error - margin) / rate)
        if high is not None and words >= high:
            words = high - 1
        if low is not None and words <= low:
            words = low + 1
        return Shape(words) if words >= 0 and Shape(words) not in self._seen else self._untried_between(low, high)

    def _untried_between(self, low: int | None, high: int | None) -> Shape | None:
        if high is None or high == 0:
            return None
        middle = ((low if low is not None else 0) + high) // 2
        return Shape(middle) if Shape(middle) not in self._seen else None

    def _ending(self, words: int) -> Shape | None:
        """Small words until the count would be passed, then the other endings; None once all were tried."""
        counts = {shape.pads: n for shape, n in self._seen.items() if shape.words == words and not shape.tail}
        under = max(pads for pads, n in counts.items() if n <= self._target)
        over = min((pads for pads, n in counts.items() if n > self._target and pads > under), default=None)
        gap = self._target - counts[under]
        if over is None:
            gained = (counts[under] - counts[0]) / under if under else 1.0
            step = max(1, round(gap / gained)) if gained > 0 else gap
            return Shape(words, under + step) if under + step <= 4 * gap + 64 else None
        if over - under > 1:
            share = gap / (counts[over] - counts[under])
            return Shape(words, under + min(over - under - 1, max(1, round((over - under) * share))))
        left = [tail for tail in range(1, len(TAILS)) if Shape(words, under, tail) not in self._seen]
        best = min(left, key=lambda tail: abs(len(TAILS[tail]) - gap), default=None)
        return Shape(words, under, best) if best is not None else None

    def _other_words(self, words: int) -> Shape | None:
        """The word before: another ending of the text may divide into tokens differently."""
        self._spent.add(words)
        for fewer in range(words - 1, max(-1, words - 8), -1):
            if Shape(fewer) not in self._seen:
                return Shape(fewer)
        return None
