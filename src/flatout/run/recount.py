"""Counts whole answers with a tokenizer, after the window, for servers that count nothing themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flatout.engines.base import TargetError
from flatout.load.samples import Samples

if TYPE_CHECKING:
    from flatout.run.session import Session

MOST_ANSWERS: Final = 400


class TokenizerError(Exception):
    """A `--tokenizer` that cannot be used; the text says why."""


def from_file(path: Path) -> Callable[[str], int]:
    """A counter from a Hugging Face `tokenizer.json` (whole text, no special tokens). Raises TokenizerError."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError("--tokenizer needs the package tokenizers: pip install tokenizers") from error
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:
        raise TokenizerError(f"{path} is no tokenizer.json: {error}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def recount(session: Session, samples: Samples) -> dict[int, int] | None:
    """Tokens of each answer's whole text by `--tokenizer`, else by the server's own tokenizer call; None where the
    server counted them itself, or where nothing can count. At most MOST_ANSWERS answers."""
    told = (samples.completion_tokens >= 0) | (samples.arrival_count == 0)
    if samples.texts is None or bool(told.any() and (samples.completion_tokens >= 0).any()):
        return None
    if len(samples.running_tokens) and bool((samples.running_tokens >= 0).any() or (samples.id_tokens >= 0).any()):
        return None
    count = session.recounter or session.target.adapter.count_tokens
    counts: dict[int, int] = {}
    for request in range(min(samples.requests, MOST_ANSWERS)):
        text = samples.texts[request]
        if not text:
            continue
        try:
            tokens = count(text)
        except TargetError:
            tokens = None
        if tokens is None:
            return counts or None
        counts[request] = tokens
    return counts or None
