"""The pages: one file a kind of page, HTML from templates, all of it readable without JavaScript."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import APIRouter

from flatout.site.pages import about, account, boards, compare, files, history, moderate, run, runs, static, subjects
from flatout.site.pages.workshop import DRAWER


@asynccontextmanager
async def _drawing(_: Any) -> AsyncIterator[None]:
    """While the site runs, the process that draws is at hand."""
    threading.Thread(target=DRAWER.warm, name="warm", daemon=True).start()
    try:
        yield
    finally:
        DRAWER.close()


router: Final = APIRouter(lifespan=_drawing)
for part in (runs, run, files, compare, boards, history, subjects, about, account, moderate, static):
    router.include_router(part.router)
