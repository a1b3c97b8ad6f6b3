"""Times as people and programs read them: from microseconds since 1970, in UTC. A record may hold a time that no
calendar has."""

from __future__ import annotations

from datetime import UTC, datetime

from flatout.show.numbers import NONE


def when(us: int | None) -> str | None:
    """RFC 3339, to the second; None for no time."""
    return None if us is None else _written(us, "%Y-%m-%dT%H:%M:%SZ")


def day(us: int | None) -> str:
    """`2026-11-30`."""
    return NONE if us is None else _written(us, "%Y-%m-%d") or "no date"


def moment(us: int | None) -> str:
    """`2026-11-30 14:05 UTC`."""
    return NONE if us is None else _written(us, "%Y-%m-%d %H:%M UTC") or "no date"


def _written(us: int, form: str) -> str | None:
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return None
