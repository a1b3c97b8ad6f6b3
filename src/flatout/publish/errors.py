"""What can go wrong before and while a record is published."""

from __future__ import annotations


class PublishError(Exception):
    """The record cannot be published as asked; the text says why, whether anything was sent, and what to do."""


class SiteTrouble(PublishError):
    """The site did not answer, or refused. `status`: of its answer, None where there was none."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status
