"""A server's own words made fit to be shown: first redacted, only then cut."""

from __future__ import annotations

from collections.abc import Callable

from flatout.protocol import shorten


def tidy(text: str, redact: Callable[[str], str], limit: int = 300) -> str:
    """One printable line of at most `limit` characters, redacted (by `Redactor.text`) before it is cut: of a key that
    stands at the cut, no part is left over."""
    line = shorten(redact(text).encode("utf-8", "replace"), 4 * limit + len(text))
    return shorten(redact(line).encode(), limit)
