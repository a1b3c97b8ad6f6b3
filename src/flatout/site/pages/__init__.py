"""The pages: one file a kind of page, HTML from templates, all of it readable without JavaScript."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import APIRouter, FastAPI

from flatout.site.pages import (
    about,
    account,
    boards,
    compare,
    files,
    history,
    moderate,
    run,
    runs,
    static,
    subjects,
    workshop,
)
from flatout.site.pages.workshop import DRAWER


@asynccontextmanager
async def _drawing(app: FastAPI) -> AsyncIterator[None]:
    """While the site runs, the process that draws is at hand, and draws what has just come."""

    def newest() -> list[str]:
        DRAWER.warm()
        return workshop.newest(app.state.site.store)

    app.state.ahead.start(newest)
    try:
        yield
    finally:
        app.state.ahead.stop()
        DRAWER.close()


router: Final = APIRouter(lifespan=_drawing)
for part in (runs, run, files, compare, boards, history, subjects, about, account, moderate, static):
    router.include_router(part.router)
