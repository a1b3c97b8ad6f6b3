"""A run as files: the record itself, tables, the page, the picture, a badge, and a frame for other pages."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Final

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from flatout.show import markdown
from flatout.show.exports import csv
from flatout.site import boards
from flatout.site.api.runs import visible
from flatout.site.boards import Board
from flatout.site.errors import NotFound
from flatout.site.pages import workshop
from flatout.site.pages.answers import READ, whole
from flatout.site.pages.badge import badge, words
from flatout.site.pages.templating import environment, policy, site_of
from flatout.site.pages.viewer import viewer
from flatout.site.schema import points
from flatout.site.store import PUBLIC, RunRow

router: Final = APIRouter()
PICTURE_S: Final = 300
IN_PAGES: Final = {"Cross-Origin-Resource-Policy": "cross-origin"}


def _row(request: Request, run_id: str) -> RunRow:
    return visible(site_of(request), viewer(request), run_id)


def _kept(row: RunRow) -> str:
    """How long others may keep a picture: no longer than hiding a run may take to have its effect, and that of one that
    is not public not at all."""
    return f"public, max-age={PICTURE_S}" if row.state == PUBLIC else "private, no-store"


def _saved(row: RunRow, ending: str) -> dict[str, str]:
    """The name under which a browser saves the file: of our own id alone."""
    return {"Content-Disposition": f'attachment; filename="flatout-{row.public_id}.{ending}"'}


@router.api_route("/r/{run_id}/record.json", methods=READ)
def record(request: Request, run_id: str) -> Response:
    """Exactly the bytes whose SHA-256 is the content hash. Raises NotFound, Tombstone."""
    row = _row(request, run_id)
    body = site_of(request).store.content(row.public_id)
    return whole(request, body, "application/json", headers=_saved(row, "json"), tag=row.content_hash)


@router.api_route("/r/{run_id}/samples.zip", methods=READ)
def samples(request: Request, run_id: str) -> Response:
    """The samples of single requests. Raises NotFound (it came without), Tombstone."""
    row = _row(request, run_id)
    body = site_of(request).store.samples(row.public_id)
    if body is None:
        raise NotFound("This run came without samples.")
    return whole(request, body, "application/zip", headers=_saved(row, "samples.zip"), tag=row.samples_hash)


@router.api_route("/r/{run_id}/cells.csv", methods=READ)
def cells(request: Request, run_id: str) -> Response:
    """A row a cell, as `flatout report --csv` writes it. Raises NotFound, Tombstone."""
    row = _row(request, run_id)
    body = csv.write(site_of(request).store.record(row.public_id)).encode()
    return whole(request, body, "text/csv; charset=utf-8", headers=_saved(row, "csv"))


@router.api_route("/r/{run_id}/table.md", methods=READ)
def table(request: Request, run_id: str) -> Response:
    """The tables as Markdown, to be pasted. Raises NotFound, Tombstone."""
    row = _row(request, run_id)
    made = markdown.render(site_of(request).store.record(row.public_id))
    link = f"{site_of(request).settings.base_url}/r/{row.public_id}"
    return whole(request, f"{made}\n\n<{link}>\n".encode(), "text/plain; charset=utf-8")


@router.api_route("/r/{run_id}/page.html", methods=READ)
def page(request: Request, run_id: str) -> Response:
    """The page as one file that needs no site. It brings its own policy, and is saved, not shown, from here."""
    row = _row(request, run_id)
    return whole(request, workshop.whole_page(request, row), "text/html; charset=utf-8", headers=_saved(row, "html"))


@router.api_route("/r/{run_id}/card.png", methods=READ)
def card(request: Request, run_id: str) -> Response:
    """The picture that other sites show of a link. Raises NotFound: there is nothing to draw."""
    row = _row(request, run_id)
    made = workshop.card(request, row)
    if made is None:
        raise NotFound("There is no picture of this run: it has no decode cells, or this site cannot draw.")
    # a browser that shows the picture alone puts a style of its own around it
    rules = "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    headers = {"Cache-Control": _kept(row), "Content-Security-Policy": rules, **IN_PAGES}
    return whole(request, made, "image/png", headers=headers)


@router.api_route("/r/{run_id}/badge.svg", methods=READ)
def badge_of(request: Request, run_id: str, board: str = "") -> Response:
    """A badge with one speed: of the operating point `board`, or of the fastest single stream. Raises NotFound."""
    row = _row(request, run_id)
    made = badge("flatout", words(*_speed(request, row, board)))
    headers = {"Cache-Control": _kept(row), "Content-Security-Policy": "default-src 'none'", **IN_PAGES}
    return whole(request, made.encode(), "image/svg+xml", headers=headers)


@router.api_route("/r/{run_id}/embed", methods=READ)
def embed(request: Request, run_id: str) -> Response:
    """The first numbers as a small page, to stand in a frame of another page. Raises NotFound, Tombstone."""
    row = _row(request, run_id)
    made = environment().get_template("embed.html").render(row=row, site=site_of(request).settings, style=_style()[0])
    return whole(
        request, made.encode(), "text/html; charset=utf-8",
        headers={"Content-Security-Policy": policy(scripted=False, framed=True).replace("'self'", _style()[1], 1)},
    )  # fmt: skip


def _speed(request: Request, row: RunRow, name: str) -> tuple[Board | None, float | None]:
    """The operating point and the run's value there; the fastest single stream without a name. Raises NotFound."""
    wanted = boards.parse(name) if name else None
    if name and wanted is None:
        raise NotFound("There is no such operating point. They have names such as single:8192 or total:8192:32.")
    with site_of(request).database.read() as conn:
        ids = select(points).where(points.c.run_id == row.id, points.c.sound.is_(True))
        values = boards.board_values(conn.execute(ids))
    if wanted is not None:
        found = next((value for value in values if value.board == wanted), None)
        return wanted, None if found is None else found.value
    for kind in ("single", "total", "prefill"):
        mine = [value for value in values if value.board.kind == kind]
        if mine:
            best = max(mine, key=lambda value: value.value)
            return best.board, best.value
    return None, None


@cache
def _style() -> tuple[str, str]:
    """The frame's sheet, and its hash as a policy names it."""
    text = resources.files("flatout.site.static").joinpath("embed.css").read_text(encoding="utf-8")
    return text, f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
