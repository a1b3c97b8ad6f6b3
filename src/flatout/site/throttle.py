"""How often one address or one token may ask: counted in memory, over a moving window, and forgotten with it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from flatout.site.errors import TooMany
from flatout.site.settings import Settings

Kind = Literal["requests", "compare", "publish", "report", "token", "failed"]
"""`token`: new tokens and new accounts; `failed`: tokens that were not known; `compare`: comparisons, which count as
`requests`, too; `requests`: everything else."""

FAILED_PER_MINUTE: Final = 20
"""Tokens cannot be guessed (256 random bits); this only keeps those who try from keeping the site busy."""

_WHAT: Final[dict[Kind, str]] = {
    "requests": "Too many requests",
    "compare": "Too many comparisons (large ones count more than once)",
    "publish": "Too many runs published",
    "report": "Too many reports",
    "token": "Too many new tokens or accounts",
    "failed": "Too many tokens that are not known here",
}
_BUCKETS: Final = 16
"""Bits of an address's counter: at most 65,536 counters whoever asks, and too few bits to find the address again."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a limit still allows. `reset_s`: until the oldest counted request leaves the window."""

    kind: Kind
    limit: int
    window_s: int
    remaining: int
    reset_s: int

    def headers(self) -> dict[str, str]:
        """RateLimit fields as the IETF draft on rate limit headers has them: name, quota and window; what is left."""
        return {
            "RateLimit-Policy": f'"{self.kind}";q={self.limit};w={self.window_s}',
            "RateLimit": f'"{self.kind}";r={self.remaining};t={self.reset_s}',
        }


class Throttle:
    """The counters of one process."""

    def __init__(self, settings: Settings) -> None:
        self._key = hashlib.sha256(b"flatout throttle\0" + settings.secret.encode()).digest()
        self._windows = MovingWindowRateLimiter(MemoryStorage())
        hourly, minutely = settings.publish_per_hour, settings.requests_per_minute
        comparing = settings.comparisons_per_minute
        self._limits: dict[Kind, RateLimitItem | None] = {
            "requests": RateLimitItemPerMinute(minutely, namespace="requests") if minutely else None,
            "compare": RateLimitItemPerMinute(comparing, namespace="compare") if comparing else None,
            "publish": RateLimitItemPerHour(hourly, namespace="publish") if hourly else None,
            "report": RateLimitItemPerHour(hourly, namespace="report") if hourly else None,
            "token": RateLimitItemPerHour(hourly, namespace="token") if hourly else None,
            "failed": RateLimitItemPerMinute(FAILED_PER_MINUTE, namespace="failed"),
        }

    def check(self, kind: Kind, key: str, cost: int = 1) -> Left | None:
        """Counts one request (`cost`: as so many); what is left of the limit, None where there is none. Raises TooMany,
        counting nothing."""
        item = self._limits[kind]
        if item is None:
            return None
        name = self._name(key)
        if not self._windows.hit(item, name, cost=min(cost, item.amount)):
            raise _too_many(self._left(kind, item, name))
        return self._left(kind, item, name)

    def full(self, kind: Kind, key: str) -> None:
        """Raises TooMany if the limit is used up; counts nothing."""
        item = self._limits[kind]
        if item is not None and not self._windows.test(item, self._name(key)):
            raise _too_many(self._left(kind, item, self._name(key)))

    def _left(self, kind: Kind, item: RateLimitItem, name: str) -> Left:
        stats = self._windows.get_window_stats(item, name)
        reset = max(1, min(ceil(stats.reset_time - time.time()), item.get_expiry()))
        return Left(kind, item.amount, item.get_expiry(), max(0, stats.remaining), reset)

    def _name(self, key: str) -> str:
        """The counter's name. Accounts and tokens are few and known (`account:…`, `token:…`): theirs are exact."""
        if key.startswith(("account:", "token:")):
            return key
        digest = hmac.new(self._key, network(key).encode(), "sha256").digest()
        return f"a{int.from_bytes(digest[:4], 'big') >> (32 - _BUCKETS)}"


def _too_many(left: Left) -> TooMany:
    window = "an hour" if left.window_s == 3600 else "a minute"
    return TooMany(
        f"{_WHAT[left.kind]}: {left.limit:,} in {window} are the most from here. Try again in {left.reset_s} s.",
        left.reset_s,
    )


def network(address: str) -> str:
    """The address as it is counted: IPv6 by its /64, which is one household's; anything else as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
