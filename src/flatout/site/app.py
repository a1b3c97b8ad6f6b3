"""The site as one ASGI application: what it holds open, and what is where."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from flatout.site import middleware, problems, reasons
from flatout.site.blobs import Blobs
from flatout.site.database import Database
from flatout.site.settings import Settings
from flatout.site.store import Store
from flatout.site.throttle import Throttle

if TYPE_CHECKING:
    from flatout.site.watch import Watcher

log: Final = logging.getLogger("flatout.site")
ORPHAN_S: Final = 3_600.0
"""A file without a run may belong to one that is being published; after an hour, it does not."""

PUBLISHING: Final = 3
"""Records that are taken in at one time; further ones wait without a thread."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a running site holds: in every request as `site(request)`."""

    settings: Settings
    database: Database
    blobs: Blobs
    store: Store
    throttle: Throttle


def site(request: Request) -> Site:
    """The site that a request came to."""
    return cast(Site, request.app.state.site)


def create_app(settings: Settings) -> FastAPI:
    """The site: its database opened and brought up to date, its routes in place. Closed as the application ends.

    Raises SiteError: the database or the files cannot be opened.
    """
    from flatout import __version__
    from flatout.site import pages
    from flatout.site.api import ABOUT, TAGS, openapi, router

    database = Database.open(settings.database_url)
    database.migrate()
    blobs = Blobs.open(settings.files_url)
    throttle = Throttle(settings)
    app = FastAPI(
        title=settings.title,
        description=ABOUT,
        version=__version__,
        openapi_tags=TAGS,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        debug=False,
        lifespan=_lifespan,
        middleware=middleware.stack(settings, throttle),
    )
    app.state.site = Site(settings, database, blobs, Store(database, blobs, settings), throttle)
    pages.workshop.attach(app)
    app.state.publishing = anyio.CapacityLimiter(PUBLISHING)
    problems.install(app)
    app.include_router(_health)
    app.include_router(router)
    app.include_router(pages.router, include_in_schema=False)
    app.openapi = _once(lambda: openapi(app))  # type: ignore[method-assign]
    return app


_health: Final = APIRouter(include_in_schema=False)


@_health.get("/healthz")
def healthz(request: Request) -> Response:
    """The site lives: its database answers. Raises Unavailable, which becomes 503."""
    site(request).database.ping()
    return JSONResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Sweeps orphans and renews rankings in the background, picks up local results while the site runs, and closes the
    database."""
    here: Site = app.state.site
    sweeper = threading.Thread(target=_sweep, args=(here,), name="sweep", daemon=True)
    sweeper.start()
    watcher = _watcher(here)
    try:
        yield
    finally:
        if watcher is not None:
            watcher.stop()
        sweeper.join(timeout=10)
        here.database.close()


def _watcher(here: Site) -> Watcher | None:
    if here.settings.results_dir is None:
        return None
    from flatout.site.watch import Watcher

    watcher = Watcher(here.store, here.settings.results_dir)
    watcher.start()
    return watcher


def _sweep(here: Site) -> None:
    try:
        here.store.sweep(ORPHAN_S)
    except Exception as error:  # the site works without it; the next start sweeps again
        said = reasons.told(error, reasons.secrets_of(here.settings))
        log.warning("files without a run could not be swept: %s", said)
    try:
        here.store.renew()
    except Exception as error:
        said = reasons.told(error, reasons.secrets_of(here.settings))
        log.warning("rankings could not be made anew: %s", said)


def _once(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    made: list[dict[str, Any]] = []

    def get() -> dict[str, Any]:
        if not made:
            made.append(make())
        return made[0]

    return get
