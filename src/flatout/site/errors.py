"""What can go wrong at the site, as errors whose text is for the person who asked."""

from __future__ import annotations

from flatout.show.safe import clean


class SiteError(Exception):
    """The text says what happened, what it means and what to do; it holds no secret and no file of the server.

    `status`: of the HTTP answer.
    """

    status = 500

    @property
    def members(self) -> dict[str, str | None]:
        """More of the answer than its text, by the names that problem documents give it."""
        return {}


class SettingsError(SiteError):
    """A setting that cannot be used; the text names it, where it came from, and what it takes."""


class Refused(SiteError):
    """What was sent is not taken (422; 413 where `too_large`). `place`: where in it, such as `cells.3.error`."""

    def __init__(self, place: str, text: str, *, too_large: bool = False) -> None:
        super().__init__(f"{place}: {text}" if place else text)
        self.place, self.text, self.too_large = place, text, too_large
        self.status = 413 if too_large else 422

    @property
    def members(self) -> dict[str, str | None]:
        return {"place": self.place or None}


class Unavailable(SiteError):
    """The database or the files cannot be used now (503). Nothing is half-written; the same request may be sent
    again."""

    status = 503


class NotFound(SiteError):
    """There is nothing by that name (404)."""

    status = 404


class Gone(SiteError):
    """It was there and its content is no more (410)."""

    status = 410


class Tombstone(Gone):
    """A run that is not shown any more: why, since when (`at`, RFC 3339), and what took its place."""

    def __init__(self, state: str, reason: str | None, at: str | None, successor: str | None) -> None:
        text = f"This run was {state}" + (f" on {at[:10]}" if at else "") + (f": {reason}" if reason else "")
        super().__init__(sentence(text) + (f" The run {successor} took its place." if successor else ""))
        self._members = {"state": state, "reason": reason, "at": at, "successor": successor}

    @property
    def members(self) -> dict[str, str | None]:
        return self._members


class Forbidden(SiteError):
    """Not theirs, or without the scope for it (403)."""

    status = 403


class Conflict(SiteError):
    """It does not fit the state that the thing is in (409)."""

    status = 409


class TooMany(SiteError):
    """Over a rate limit (429); it may be tried again after `retry_after_s` seconds."""

    status = 429

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = max(1, retry_after_s)


def no_run(public_id: str) -> NotFound:
    """The same words for what is not there and for what the asker may not see."""
    return NotFound(f"there is no run {clean(public_id, 20)!r} here")


def sentence(text: str) -> str:
    """With a full stop, unless it ends with a sign of its own."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
