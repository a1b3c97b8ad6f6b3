"""How many tokens did each arrival carry, and who says so?

Best first (docs/definitions.md, "Token counts"): running counts in events, token ids, usage at the end, the whole text
re-tokenised, events. A request without its own count (cut by the window's end, or the server forgot) takes the cell's
tokens per byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from flatout.load.samples import OK, REASONING, Samples

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

SOURCES: Final = ("running counts", "token ids", "usage", "retokenised", "tokens per byte", "events")
RUNNING, IDS, USAGE, RETOKENISED, PER_BYTE, EVENTS = range(6)
NONE: Final = -1  # a request without any arrival
ESTIMATES: Final = frozenset({RETOKENISED, PER_BYTE, EVENTS})
"""Sources other than the server's own count; their tokens are flagged `tokens_estimated`."""

_CLOSING_TOKENS = 2  # usage may bill this many more than the events showed: an end token has no text
_TOKEN_BYTES_CV2 = 0.4  # squared coefficient of variation of bytes per token; 0.3-0.5 in prose and code of BPE models
_LEAST_BYTES_PER_TOKEN = 2.0  # text of fewer bytes per billed token means that most of it was not streamed


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Shapes: A arrivals, R requests.

    `tokens` (A): tokens that each arrival carried. `source` (R): index into SOURCES, -1 for a request without arrivals.
    `hidden` (R): reasoning tokens that the server billed but did not stream; in no rate.
    `usage_pair`, `ids_pair`: (tokens by running counts or ids, the other source's count) summed over the requests where
    both are there; None where there is no such request.
    """

    tokens: F64
    source: npt.NDArray[np.int8]
    hidden: I64
    usage_pair: tuple[float, float] | None
    ids_pair: tuple[float, float] | None

    @property
    def estimated(self) -> npt.NDArray[np.bool_]:
        """(R) whether the request's tokens were not counted by the server."""
        return np.isin(self.source, sorted(ESTIMATES))


def arrival_requests(samples: Samples) -> tuple[I64, I64]:
    """Row numbers of all arrivals that belong to a request, and the request of each, ordered by request."""
    counts = samples.arrival_count.astype(np.int64)
    owner = np.repeat(np.arange(samples.requests, dtype=np.int64), counts)
    before = np.concatenate(([0], np.cumsum(counts)[:-1])) if len(counts) else counts
    rows = np.arange(len(owner), dtype=np.int64) - before[owner] + samples.arrival_start.astype(np.int64)[owner]
    return rows, owner


def content(samples: Samples) -> npt.NDArray[np.bool_]:
    """(A) whether an arrival is a token as `first_token` has it: text, reasoning, tool arguments or token ids.

    A role-only or empty event is none (fault M1)."""
    mask: npt.NDArray[np.bool_] = (samples.text_len > 0) | (samples.id_tokens > 0)
    return mask


def count(
    samples: Samples, *, retokenised: Mapping[int, int] | None = None, run_tokens_per_byte: float | None = None
) -> TokenCounts:
    """Tokens of every arrival by the best source that each request has (see the module's text).

    `retokenised`: request row -> tokens of its whole text by the given tokenizer, without special tokens.
    `run_tokens_per_byte`: what usage billed earlier in the run, for a cell in which no request ended.
    """
    tokens = np.zeros(len(samples.t_ns))
    source = np.full(samples.requests, NONE, dtype=np.int8)
    hidden = np.zeros(samples.requests, dtype=np.int64)
    totals: dict[int, float] = {}
    given = retokenised or {}
    spread: list[int] = []
    is_content = content(samples)
    for r in range(samples.requests):
        part = samples.arrivals_of(r)
        if part.start == part.stop:
            continue
        hidden[r] = _hidden_reasoning(samples, r, is_content[part])
        exact = _per_arrival(samples, r, is_content[part], int(hidden[r]))
        if exact is not None:
            source[r], tokens[part] = exact
        elif samples.completion_tokens[r] > 0:
            source[r], totals[r] = USAGE, float(samples.completion_tokens[r] - hidden[r])
            spread.append(r)
        elif is_content[part].any():
            spread.append(r)
    _fill_totals(samples, spread, source, totals, given, is_content, run_tokens_per_byte)
    first_alone = _first_comes_alone(samples, spread, totals, is_content)
    for r in spread:
        part = samples.arrivals_of(r)
        by_events = source[r] == EVENTS
        tokens[part] = (
            is_content[part] if by_events else _spread(totals[r], samples.text_len[part], is_content[part], first_alone)
        )
    return TokenCounts(tokens, source, hidden, *_pairs(samples, tokens, source, hidden, is_content))


def _per_arrival(samples: Samples, r: int, is_content: npt.NDArray[np.bool_], hidden: int) -> tuple[int, F64] | None:
    """Source and tokens per arrival where every event tells: running counts, else ids."""
    part = samples.arrivals_of(r)
    running = samples.running_tokens[part]
    contents = int(is_content.sum())
    counted = int((running > 0).sum())
    # With several choices each event's count is that of its own choice (fault T8); a count in one event only is usage.
    if samples.choices[r] <= 1 and 2 * counted >= contents and (counted > 1 or (counted and contents <= 1)):
        tokens = _from_running(running, samples.text_len[part], is_content, hidden, bool(samples.outcome[r] == OK))
        if samples.outcome[r] == OK and 0 < samples.completion_tokens[r] - hidden - tokens.sum() <= _CLOSING_TOKENS:
            tokens[np.flatnonzero(tokens)[-1]] += samples.completion_tokens[r] - hidden - tokens.sum()
        return RUNNING, tokens
    ids = samples.id_tokens[part]
    if contents and bool((ids[is_content] >= 0).all()):
        return IDS, np.maximum(ids, 0).astype(np.float64)
    return None


def _from_running(
    running: npt.NDArray[np.int32],
    text_len: npt.NDArray[np.int32],
    is_content: npt.NDArray[np.bool_],
    hidden: int,
    ended: bool,
) -> F64:
    """Differences of a request's running count, each given to the arrivals since the count before it.

    Tokens that come with an empty event before the first text belong to the first text, those of the closing event to
    the last text; those of an empty event between texts (half a UTF-8 character) stay at its time.
    """
    if not hidden and is_content.all() and running[0] > 0 and (np.diff(running) > 0).all():
        return np.diff(running, prepend=0).astype(np.float64)
    tokens = np.zeros(len(running))
    at = np.flatnonzero(is_content)
    first, last = (int(at[0]), int(at[-1])) if len(at) else (0, len(running) - 1)
    before, start, skip = 0, 0, hidden
    for i, now in enumerate(running.tolist()):
        if now <= before or i < first:
            continue
        step = now - before
        before = now
        dropped = min(skip, step)  # hidden reasoning is billed on the first event that shows a count
        step, skip = step - dropped, skip - dropped
        group = np.flatnonzero(is_content[start : i + 1]) + start
        if len(group):
            weights = text_len[group].astype(np.float64)
            tokens[group] += step * (weights / weights.sum() if weights.sum() else 1.0 / len(group))
        elif ended and i == len(running) - 1:
            tokens[last] += step
        else:
            tokens[i] += step
        start = i + 1
    return tokens


def _hidden_reasoning(samples: Samples, r: int, is_content: npt.NDArray[np.bool_]) -> int:
    """Reasoning tokens in usage that were never streamed.

    None if any event was reasoning, if the text shows a think tag, or if more events came than tokens would be left.
    Otherwise they count as hidden if what is left fits the events one to one, or if the text is too short for the bill.
    """
    reasoning, billed = int(samples.reasoning_tokens[r]), int(samples.completion_tokens[r])
    part = samples.arrivals_of(r)
    if reasoning <= 0 or billed < reasoning or bool((samples.kind[part] & REASONING).any()):
        return 0
    if samples.texts is not None and "</think>" in samples.texts[r]:
        return 0
    ids = samples.id_tokens[part]
    if (ids > 0).any() and int(ids[ids > 0].sum()) > billed - reasoning + _CLOSING_TOKENS:
        return 0
    visible, events = billed - reasoning, int(is_content.sum())
    if events > visible + _CLOSING_TOKENS:
        return 0
    one_to_one = events >= 0.9 * visible
    too_short = int(samples.text_len[part].sum()) < _LEAST_BYTES_PER_TOKEN * billed
    return reasoning if one_to_one or too_short else 0


def _fill_totals(
    samples: Samples,
    spread: list[int],
    source: npt.NDArray[np.int8],
    totals: dict[int, float],
    given: Mapping[int, int],
    is_content: npt.NDArray[np.bool_],
    run_per_byte: float | None,
) -> None:
    """Totals for the requests without usage of their own: the text re-tokenised (where usage was not the cell's
    source), the cell's tokens per byte (else the run's), and, if nothing else is there, events."""
    text = {r: int(samples.text_len[samples.arrivals_of(r)].sum()) for r in spread}
    with_usage = [r for r in totals if text[r] > 0]
    usage_bytes = sum(text[r] for r in with_usage)
    per_byte = sum(totals[r] for r in with_usage) / usage_bytes if usage_bytes else None
    for r in spread:
        if r in totals:
            continue
        if r in given and per_byte is None:
            source[r], totals[r] = RETOKENISED, float(given[r])
        elif per_byte is not None and text[r] > 0:
            source[r], totals[r] = PER_BYTE, per_byte * text[r]
        elif r in given:
            source[r], totals[r] = RETOKENISED, float(given[r])
        elif run_per_byte is not None and text[r] > 0:
            source[r], totals[r] = PER_BYTE, run_per_byte * text[r]
        else:
            source[r], totals[r] = EVENTS, float(is_content[samples.arrivals_of(r)].sum())


def _first_comes_alone(
    samples: Samples, spread: list[int], totals: dict[int, float], is_content: npt.NDArray[np.bool_]
) -> bool:
    """Whether the cell's first events carry one token although later ones carry several (vLLM's and SGLang's
    stream interval): the first event's bytes lie nearer to one token's than to those of an average event."""
    ratios = []
    for r in spread:
        part = samples.arrivals_of(r)
        lengths = samples.text_len[part][is_content[part]]
        per_event = totals[r] / max(len(lengths), 1)
        if len(lengths) >= 4 and per_event >= 1.5 and lengths.mean() > 0:
            ratios.append(lengths[0] / lengths.mean() * np.sqrt(per_event))
    return bool(ratios) and float(np.median(ratios)) < 1.0


def _spread(total: float, text_len: npt.NDArray[np.int32], is_content: npt.NDArray[np.bool_], first_alone: bool) -> F64:
    """`total` tokens over a request's arrivals; the sum is kept.

    By bytes alone, one-token events of unequal words would get unequal counts; by equal shares, a lump after a stall
    would get too few. Shares are bytes shrunk towards equal by the part of their variance that words of unequal length
    explain: Var(bytes per event) = E[k] Var(b) + Var(k) E[b]^2 (law of total variance; linear Bayes estimator of k).
    """
    out = np.zeros(len(text_len))
    at = np.flatnonzero(is_content) if is_content.any() else np.arange(len(text_len))
    lengths = text_len[at].astype(np.float64)
    if total <= 0 or not len(at):
        return out
    if lengths.sum() <= 0:
        out[at] = total / len(at)
        return out
    if first_alone and len(at) > 1 and total > 1:
        out[at[0]] = 1.0
        at, lengths, total = at[1:], lengths[1:], total - 1.0
        if lengths.sum() <= 0:
            out[at] = total / len(at)
            return out
    ratio = lengths / lengths.mean()
    words = _TOKEN_BYTES_CV2 * len(at) / total
    variance = float(ratio.var())
    trust = max(0.0, 1.0 - words / variance) if variance > 0 else 0.0
    out[at] = total / len(at) * (1.0 + trust * (ratio - 1.0))
    return out


def _pairs(
    samples: Samples,
    tokens: F64,
    source: npt.NDArray[np.int8],
    hidden: I64,
    is_content: npt.NDArray[np.bool_],
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """Running counts or ids against usage, and running counts against ids, where a request has both."""
    usage: list[tuple[float, float]] = []
    ids: list[tuple[float, float]] = []
    for r in np.flatnonzero((source == RUNNING) | (source == IDS)):
        part = samples.arrivals_of(int(r))
        own = float(tokens[part].sum())
        if samples.outcome[r] == OK and samples.completion_tokens[r] >= 0:
            usage.append((own, float(samples.completion_tokens[r] - hidden[r])))
        event_ids = samples.id_tokens[part]
        if source[r] == RUNNING and (event_ids > 0).any() and bool((event_ids[is_content[part]] >= 0).all()):
            ids.append((own, float(np.maximum(event_ids, 0).sum())))
    return _sums(usage), _sums(ids)


def _sums(pairs: list[tuple[float, float]]) -> tuple[float, float] | None:
    return (sum(a for a, _ in pairs), sum(b for _, b in pairs)) if pairs else None
