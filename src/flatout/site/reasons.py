"""Why the database or the files cannot be used, for the operator's log alone: visitors are told that it is so."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import unquote, urlsplit

from flatout.engines.redact import Redactor
from flatout.show.safe import clean
from flatout.site.errors import SiteError
from flatout.site.settings import Settings

log: Final = logging.getLogger("flatout.site")
EVERY_S: Final = 60.0
MOST_CHARS: Final = 300
MOST_KINDS: Final = 200


def cause(error: BaseException) -> BaseException | None:
    """What the driver or the system raised; None where nothing lies below the site's own error."""
    seen: BaseException | None = error
    last: BaseException | None = None
    while seen is not None:
        said = getattr(seen, "orig", None)
        if isinstance(said, BaseException):
            return said
        if isinstance(seen, OSError):
            return seen
        last = last if isinstance(seen, SiteError) else seen
        seen = seen.__cause__
    return last


def words(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """An error's first line, redacted: drivers write statements and rows, if at all, into the lines behind it."""
    line = next((part for part in str(error).splitlines() if part.strip()), "")
    return clean(Redactor(secrets, "", "", ()).text(line[:2000]), MOST_CHARS)


def told(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """An error for the log: the site's own words with what is below them, and the system's. Of any other the class
    alone: its text may hold what was sent."""
    below = cause(error)
    if below is None:
        return clean(error, 500)
    known = isinstance(error, SiteError) or isinstance(below, OSError)
    inner = f"{type(below).__name__}: {words(below, secrets)}" if known else type(below).__name__
    return f"{clean(error, 500)} ({inner})" if isinstance(error, SiteError) else inner


def secrets_of(settings: Settings) -> list[str]:
    """What must stand in no log, whatever a driver says: the site's secret, passwords in its addresses."""
    found = [settings.secret]
    for url in (settings.database_url, settings.files_url):
        try:
            password = urlsplit(url).password
        except ValueError:
            continue
        found += [password, unquote(password)] if password else []
    return found


class Reasons:
    """The log of requests that could not be answered: each kind at most once a minute, with how many there were."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets_of(settings)
        self._now = now
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def say(self, text: str, error: BaseException) -> None:
        """`text`: the site's words for it; the kind is those and the class of the cause."""
        below = cause(error)
        kind = (text, "" if below is None else type(below).__name__)
        now = self._now()
        with self._lock:
            last, more = self._last.get(kind, (None, 0))
            if last is not None and now - last < EVERY_S:
                self._last[kind] = (last, more + 1)
                return
            if len(self._last) >= MOST_KINDS:
                self._last.clear()
            self._last[kind] = (now, 0)
        why = "" if below is None else f"; {kind[1]}: {words(below, self._secrets)}"
        log.warning("not available: %s%s%s", text, why, f" ({more} more of these before)" if more else "")
