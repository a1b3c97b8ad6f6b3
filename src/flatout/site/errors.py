"""What can go wrong at the site, as errors whose text is for the person who asked."""

from __future__ import annotations

from flatout.show.safe import clean


class SiteError(Exception):
    """The text says what happened, what it means and what to do; it holds no secret and no file of the server."""


class Refused(SiteError):
    """What was sent is not taken (422; 413 where `too_large`). `place`: where in it, such as `cells.3.error`."""

    def __init__(self, place: str, text: str, *, too_large: bool = False) -> None:
        super().__init__(f"{place}: {text}" if place else text)
        self.place = place
        self.text = text
        self.too_large = too_large


class Unavailable(SiteError):
    """The database or the files cannot be used now (503). Nothing is half-written; the same request may be sent
    again."""


class NotFound(SiteError):
    """There is nothing by that name (404)."""


class Gone(SiteError):
    """It was there and its content is no more (410)."""


class Forbidden(SiteError):
    """Not theirs, or without the scope for it (403)."""


class Conflict(SiteError):
    """It does not fit the state that the thing is in (409)."""


class TooMany(SiteError):
    """Over a rate limit (429); it may be tried again after `retry_after_s` seconds."""

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


def no_run(public_id: str) -> NotFound:
    """The same words for what is not there and for what the asker may not see."""
    return NotFound(f"there is no run {clean(public_id, 20)!r} here")
