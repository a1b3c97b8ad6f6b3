"""The site as one ASGI application: what is where, and what goes on beside the requests."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from flatout import __version__
from flatout.site import api, middleware, pages, problems, reasons
from flatout.site.settings import Settings
from flatout.site.state import Site, site

log: Final = logging.getLogger("flatout.site")


def create_app(settings: Settings) -> FastAPI:
    """The site with its routes in place; closed as the application ends.

    Raises SiteError: the database or the files cannot be opened.
    """
    opened = Site.open(settings)
    app = FastAPI(
        title=settings.title, description=api.ABOUT, version=__version__, openapi_tags=api.TAGS,
        openapi_url="/api/v1/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False, debug=False,
        lifespan=_lifespan, middleware=middleware.stack(settings, opened.throttle),
    )  # fmt: skip
    app.state.site = opened
    problems.install(app)
    app.add_api_route("/healthz", healthz, include_in_schema=False)
    app.include_router(api.router)
    app.include_router(pages.router, include_in_schema=False)
    app.openapi = functools.cache(lambda: api.openapi(app))  # type: ignore[method-assign]
    return app


def healthz(request: Request) -> Response:
    """The site lives: its database answers. Raises Unavailable, which becomes 503."""
    site(request).database.ping()
    return JSONResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Sweeps orphans and renews rankings in the background, draws, and picks up local results while the site runs; then
    closes the database."""
    here: Site = app.state.site
    sweeper = threading.Thread(target=_sweep, args=(here,), name="sweep", daemon=True)
    sweeper.start()
    here.drawings.start()
    watcher = None
    if here.settings.results_dir is not None:
        from flatout.site.watch import Watcher

        watcher = Watcher(here.store, here.settings.results_dir)
        watcher.start()
    try:
        yield
    finally:
        if watcher is not None:
            watcher.stop()
        here.drawings.stop()
        sweeper.join(timeout=10)
        here.database.close()


def _sweep(here: Site) -> None:
    """The site works without it; the next start tries again."""
    for what, work in (
        ("files without a run could not be swept", here.store.sweep),
        ("rankings could not be made anew", here.store.renew),
    ):
        try:
            work()
        except Exception as error:
            log.warning("%s: %s", what, reasons.told(error, reasons.secrets_of(here.settings)))
