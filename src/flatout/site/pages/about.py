"""What this site is, what it keeps, and how programs talk to it."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from flatout.show.page.words import DEFINITIONS, TOKENS
from flatout.site.pages.answers import READ
from flatout.site.pages.templating import page

router: Final = APIRouter()


@router.api_route("/about", methods=READ)
def about(request: Request) -> Response:
    """The page about the site itself."""
    return page(request, "about.html", "About", scripted=True, definitions=DEFINITIONS, tokens=TOKENS)
