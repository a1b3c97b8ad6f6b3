"""What is the same for everybody: the page about the site, style sheets, words for robots."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from flatout.show.page.legend import DEFINITIONS, TOKENS
from flatout.site.answers import READ, asset, asset_url
from flatout.site.errors import NotFound
from flatout.site.html import page

router: Final = APIRouter()


@router.api_route("/about", methods=READ)
def about(request: Request) -> Response:
    """What this site is, what it keeps, and how programs talk to it."""
    return page(request, "about.html", "About", scripted=True, definitions=DEFINITIONS, tokens=TOKENS)


@router.api_route("/static/{name}", methods=READ)
def static(request: Request, name: str) -> Response:
    """A style sheet or the icon; for good where the address holds its version. Raises NotFound."""
    file = asset(name)
    if file is None:
        raise NotFound("There is no such file.")
    current = request.url.query == asset_url(name).partition("?")[2]
    kept = "public, max-age=31536000, immutable" if current else "public, max-age=300"
    return Response(file[0], media_type=file[1], headers={"Cache-Control": kept})


@router.api_route("/favicon.ico", methods=READ)
def favicon(request: Request) -> Response:
    """For browsers that ask for it without having read a page."""
    return static(request, "icon.svg")


@router.api_route("/robots.txt", methods=READ)
def robots() -> Response:
    """Runs may be found; comparisons and filtered lists are without end."""
    text = "User-agent: *\nDisallow: /compare\nDisallow: /account\nDisallow: /moderate\nDisallow: /*?\n"
    return Response(text, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "public, max-age=3600"})
