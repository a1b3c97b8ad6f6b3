"""Files that never change under their address."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from flatout.site.errors import NotFound
from flatout.site.pages.answers import READ
from flatout.site.pages.templating import asset, asset_url

router: Final = APIRouter()


@router.api_route("/static/{name}", methods=READ)
def static(request: Request, name: str) -> Response:
    """A style sheet or the icon; for good where the address holds its version. Raises NotFound."""
    found = asset(name)
    if found is None:
        raise NotFound("There is no such file.")
    body, kind = found
    current = request.url.query == asset_url(name).partition("?")[2]
    kept = "public, max-age=31536000, immutable" if current else "public, max-age=300"
    return Response(body, media_type=kind, headers={"Cache-Control": kept})


@router.api_route("/favicon.ico", methods=READ)
def favicon(request: Request) -> Response:
    """For browsers that ask for it without having read a page."""
    return static(request, "icon.svg")


@router.api_route("/robots.txt", methods=READ)
def robots() -> Response:
    """Runs may be found; comparisons and filtered lists are without end."""
    text = "User-agent: *\nDisallow: /compare\nDisallow: /account\nDisallow: /moderate\nDisallow: /*?\n"
    return Response(text, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "public, max-age=3600"})
