"""What is drawn of runs, kept: one drawing process for this program, one place of kept things for each site.

Of runs that are not public any more nothing is kept; moderators, who may still look at them, have them drawn anew.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from sqlalchemy import select

from flatout.site import comparing
from flatout.site.comparing import Few
from flatout.site.drawer import Busy, Drawer
from flatout.site.index import Moved
from flatout.site.middleware import address
from flatout.site.pages.ahead import NEWEST, Ahead
from flatout.site.pages.answers import Piece, pack, unpack
from flatout.site.pages.rendered import COMPARISON, Rendered
from flatout.site.pages.templating import site_of
from flatout.site.schema import runs
from flatout.site.store import DELETED, HIDDEN, PUBLIC, QUEUED, WITHDRAWN, RunRow, Store

DRAWER: Final = Drawer()
_LOCK: Final = threading.Lock()
TIDY_S: Final = 60.0
SHOWN: Final = (PUBLIC, QUEUED)
NOTHING: Final = b""
"""Kept where a thing cannot be drawn, so that it is not tried again."""
DRAWINGS: Final = Few(8)
"""Of the site's 40 threads; a run takes 0.3 s."""
COMPARISONS: Final = Few(3)
COMPARED: Final = Few(3)
"""Those that are drawn, and those for programs: one is made, two wait."""


def attach(app: FastAPI) -> None:
    """Gives the site its place for drawings: what leaves the public is forgotten at once, what comes is drawn before
    anybody asks (while `app.state.ahead` runs)."""
    store: Store = app.state.site.store
    kept = app.state.rendered = Rendered(app.state.site.settings.data_dir / "rendered")
    ahead = app.state.ahead = Ahead(lambda public_id: _draw_ahead(store, kept, public_id))

    def moved(run: Moved) -> None:
        if run.state in SHOWN:
            ahead.add(run.public_id)
        else:
            kept.forget([run.content_hash])

    store.listeners.append(moved)


def newest(store: Store) -> list[str]:
    """The first runs of the list."""
    order = (runs.c.started_us.desc(), runs.c.id.desc())
    with store.database.read() as conn:
        return list(conn.scalars(select(runs.c.public_id).where(runs.c.state == PUBLIC).order_by(*order).limit(NEWEST)))


def rendered(request: Request) -> Rendered:
    """The site's kept drawings."""
    found: Rendered = request.app.state.rendered
    _tidy(request, found)
    return found


def _tidy(request: Request, kept: Rendered) -> None:
    """What was drawn of runs that another process of the site took out of the public goes, too."""
    state = request.app.state
    with _LOCK:
        now, last = time.monotonic(), getattr(state, "tidied", None)
        if last is not None and now - last < TIDY_S:
            return
        state.tidied = now
    with site_of(request).database.read() as conn:
        gone = conn.scalars(select(runs.c.content_hash).where(runs.c.state.in_((HIDDEN, WITHDRAWN, DELETED)))).all()
    before: set[str] = getattr(state, "gone", set())
    state.gone = set(gone)
    # what was drawn while it went, too; without any, what is drawn of several runs stays
    if found := (state.gone - before) | kept.hashes().intersection(state.gone):
        kept.forget(found)


def run_page(request: Request, row: RunRow) -> tuple[dict[str, str], dict[str, Piece]]:
    """A run's page in parts, as `drawer.run_page` makes them: the pieces `head` and `rest`, and what is said of it.
    Raises Unavailable, NotFound, Gone."""
    store = site_of(request).store
    return unpack(_kept(request, "run", row, lambda: _run_page(store, row, DRAWER.draw), also=row.samples_hash or ""))


def _run_page(store: Store, row: RunRow, draw: Callable[..., Any]) -> bytes:
    content, samples = store.content(row.public_id), store.samples(row.public_id)
    made: dict[str, str] = draw("run", content, samples, row.received_us)
    head, rest = made.pop("head"), made.pop("rest")
    return pack(made, {"head": head.encode(), "rest": rest.encode()})


def _draw_ahead(store: Store, kept: Rendered, public_id: str) -> None:
    """Raises Busy, and as `run_page`."""
    row = store.row(public_id)
    if row.state in SHOWN and not DRAWER.busy:
        kept.get("run", row.content_hash, lambda: _run_page(store, row, DRAWER.draw_ahead), also=row.samples_hash or "")
    elif row.state in SHOWN:
        raise Busy


def _kept(request: Request, kind: str, row: RunRow, make: Callable[[], bytes], *, also: str = "") -> bytes:
    kept = rendered(request)
    known = kept.known(kind, row.content_hash, also=also) if row.state in SHOWN else None
    if known is not None:
        return known
    with DRAWINGS:
        return kept.get(kind, row.content_hash, make, also=also) if row.state in SHOWN else make()


def whole_page(request: Request, row: RunRow) -> bytes:
    """The run's page as one file. Raises as `run_page`."""
    store = site_of(request).store
    return _kept(
        request, "whole", row,
        lambda: DRAWER.draw("whole", store.content(row.public_id), store.samples(row.public_id)),
        also=row.samples_hash or "",
    )  # fmt: skip


def card(request: Request, row: RunRow) -> bytes | None:
    """The picture for links; None where there is none. Raises as `run_page`."""
    store = site_of(request).store
    made = _kept(request, "card", row, lambda: DRAWER.draw("card", store.content(row.public_id)) or NOTHING)
    return made or None


def comparison(
    request: Request, rows: Sequence[RunRow], names: Sequence[str]
) -> tuple[dict[str, str], dict[str, Piece]]:
    """Runs compared, the first being the baseline: the piece `body`, its `title`; or an `error` in words. Raises as
    `run_page`, Refused (too large) and TooMany."""
    store = site_of(request).store

    def make() -> bytes:
        made: dict[str, str] = DRAWER.draw("comparison", [store.content(r.public_id) for r in rows], list(names))
        body = made.pop("body", "")
        return pack(made, {"body": body.encode()})

    return unpack(_compared(request, "page", rows, names, COMPARISONS, make))


def compared(request: Request, rows: Sequence[RunRow]) -> bytes:
    """The same as JSON, for programs, under the runs' own ids. Raises as `comparison`; Refused, too, where they cannot
    be compared."""
    store = site_of(request).store
    names = [row.public_id for row in rows]

    def make() -> bytes:
        return comparing.compared([store.content(name) for name in names], names)

    return _compared(request, "data", rows, names, COMPARED, make)


def part(
    request: Request, kind: str, of: str, make: Callable[[], tuple[dict[str, str], str]]
) -> tuple[dict[str, str], dict[str, Piece]]:
    """Part of a page that is drawn from the database, as the piece `body`, and what is said of it; kept in memory under
    `of`, the digest of all that it is drawn from. Raises what `make` raises."""

    def packed() -> bytes:
        told, body = make()
        return pack(told, {"body": body.encode()})

    return unpack(rendered(request).get(kind, of, packed, file=False))


def _compared(
    request: Request, form: str, rows: Sequence[RunRow], names: Sequence[str], few: Few, make: Callable[[], bytes]
) -> bytes:
    """A comparison that is kept, or made now and counted."""
    cost = comparing.count(rows)
    of = hashlib.sha256("\0".join([form, *(row.content_hash for row in rows), *names]).encode()).hexdigest()
    kept = rendered(request)
    known = kept.known(COMPARISON, of, file=False)
    if known is not None:
        return known
    site_of(request).throttle.check("compare", address(request.scope), cost=cost)
    with few:
        return kept.get(COMPARISON, of, make, file=False)
