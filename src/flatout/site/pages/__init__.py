"""The pages: one file a kind of page, HTML from templates, all of it readable without JavaScript."""

from typing import Final

from fastapi import APIRouter

from flatout.site.pages import account, boards, compare, moderate, run, runs, static

router: Final = APIRouter()
for _part in (runs, run, compare, boards, account, moderate, static):
    router.include_router(_part.router)
