"""What is drawn of runs, kept: one drawing process for this program, one place of kept things for each site."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from typing import Final

from fastapi import Request
from sqlalchemy import select

from flatout.site.drawer import Drawer
from flatout.site.pages.answers import Piece, pack, unpack
from flatout.site.pages.rendered import COMPARISON, Rendered
from flatout.site.pages.templating import site_of
from flatout.site.schema import runs
from flatout.site.store import DELETED, RunRow

DRAWER: Final = Drawer()
_LOCK: Final = threading.Lock()
TIDY_S: Final = 60.0
NOTHING: Final = b""
"""Kept where a thing cannot be drawn, so that it is not tried again."""


def rendered(request: Request) -> Rendered:
    """The site's kept drawings."""
    state = request.app.state
    with _LOCK:
        found = getattr(state, "rendered", None)
        if found is None:
            found = state.rendered = Rendered(site_of(request).settings.data_dir / "rendered")
    assert isinstance(found, Rendered)
    _tidy(request, found)
    return found


def _tidy(request: Request, kept: Rendered) -> None:
    """What was drawn of runs that were deleted since the last look goes, too, however they were deleted."""
    state = request.app.state
    with _LOCK:
        now, last = time.monotonic(), getattr(state, "tidied", None)
        if last is not None and now - last < TIDY_S:
            return
        state.tidied = now
    with site_of(request).database.read() as conn:
        gone = conn.scalars(select(runs.c.content_hash).where(runs.c.state == DELETED)).all()
    kept.forget(kept.hashes().intersection(gone))


def run_page(request: Request, row: RunRow) -> tuple[dict[str, str], dict[str, Piece]]:
    """A run's page in parts, as `drawer.run_page` makes them: the pieces `head` and `rest`, and what is said of it.
    Raises Unavailable, NotFound, Gone."""
    store = site_of(request).store

    def make() -> bytes:
        content, samples = store.content(row.public_id), store.samples(row.public_id)
        made: dict[str, str] = DRAWER.draw("run", content, samples, row.received_us)
        head, rest = made.pop("head"), made.pop("rest")
        return pack(made, {"head": head.encode(), "rest": rest.encode()})

    return unpack(rendered(request).get("run", row.content_hash, make, also=row.samples_hash or ""))


def whole_page(request: Request, row: RunRow) -> bytes:
    """The run's page as one file. Raises as `run_page`."""
    store = site_of(request).store
    return rendered(request).get(
        "whole", row.content_hash,
        lambda: DRAWER.draw("whole", store.content(row.public_id), store.samples(row.public_id)),
        also=row.samples_hash or "",
    )  # fmt: skip


def card(request: Request, row: RunRow) -> bytes | None:
    """The picture for links; None where there is none. Raises as `run_page`."""
    store = site_of(request).store
    made = rendered(request).get(
        "card", row.content_hash, lambda: DRAWER.draw("card", store.content(row.public_id)) or NOTHING
    )
    return made or None


def comparison(
    request: Request, rows: Sequence[RunRow], names: Sequence[str]
) -> tuple[dict[str, str], dict[str, Piece]]:
    """Runs compared, the first being the baseline: the piece `body`, its `title`; or an `error` in words. Raises as
    `run_page`."""
    store = site_of(request).store

    def make() -> bytes:
        made: dict[str, str] = DRAWER.draw("comparison", [store.content(r.public_id) for r in rows], list(names))
        body = made.pop("body", "")
        return pack(made, {"body": body.encode()})

    of = hashlib.sha256("\0".join([*(row.content_hash for row in rows), *names]).encode()).hexdigest()
    return unpack(rendered(request).get(COMPARISON, of, make, file=False))
