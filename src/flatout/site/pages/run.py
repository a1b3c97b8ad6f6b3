"""A run's page: the report's own, with what can be trusted about it and what can be done with it; and a run as files:
the record itself, tables, the page, the picture, a badge, and a frame for other pages."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from flatout.show.exports import csv, md
from flatout.site import boards, moderation, reproductions
from flatout.site.answers import READ, Piece, piece, whole
from flatout.site.audit import Check
from flatout.site.boards import Board
from flatout.site.drawings import REPEATS, SHOWN
from flatout.site.errors import NotFound, Refused, SiteError
from flatout.site.html import NOTHING, page, part, policy, see_other
from flatout.site.index import RunRow
from flatout.site.pages.pictures import badge, badge_words
from flatout.site.schema import points
from flatout.site.session import Form, signed_in, viewer
from flatout.site.state import address, site
from flatout.site.store import PUBLIC

router: Final = APIRouter()
LEVELS: Final = ("doubt", "note", "good")
FIRST: Final = 3
"""Checks that stand in the open; the others are folded, so that the numbers are near."""
PICTURE_S: Final = 300


def _row(request: Request, run_id: str) -> RunRow:
    """Raises NotFound, and Tombstone for a run that is not shown any more; so does every page of a run."""
    return site(request).visible(viewer(request), run_id)


@router.api_route("/r/{run_id}", methods=READ)
def run(request: Request, run_id: str) -> Response:
    """The page."""
    here, who, row = site(request), viewer(request), _row(request, run_id)
    words, drawn = here.drawings.run_page(row)
    with here.database.read() as conn:
        repeats = reproductions.digest(conn, row)
        deeds = moderation.deeds(conn, run_id) if who is not None and who.may("moderate") else []
    checks = sorted((Check(*one) for one in json.loads(words["checks"])), key=lambda one: LEVELS.index(one.level))
    drawn["repeated"] = _repeats(request, row, repeats)
    return page(
        request, "run.html", words["title"], scripted=True, drawn=drawn, row=row, successor=here.store.successor(row),
        replaces=here.store.replaces(row), worst=checks, first=FIRST, description=words["description"],
        card=words["card"] == "yes", deeds=deeds, mine=who is not None and row.account_id == who.account_id,
    )  # fmt: skip


def _repeats(request: Request, row: RunRow, of: str) -> Piece:
    """Its repeats; `of`: the digest of all that they are. Kept only of runs that are shown."""

    def body() -> str:
        with site(request).database.read() as conn:
            return part("repeats_body.html", row=row, repeats=reproductions.reproductions(conn, row))

    if row.state not in SHOWN:
        return piece(body().encode())
    return site(request).drawings.part(REPEATS, of, lambda: ({}, body()))[1]["body"]


# --- forms ------------------------------------------------------------------------------------------------------------


@router.api_route("/r/{run_id}/withdraw", methods=READ)
def withdrawing(request: Request, run_id: str) -> Response:
    """The form to take one's run back. Raises Forbidden."""
    signed_in(request, "publish")
    return _withdraw_form(request, _row(request, run_id))


@router.post("/r/{run_id}/withdraw")
def withdraw(request: Request, run_id: str, form: Form) -> Response:
    """Takes the run back. Raises Forbidden, Conflict."""
    who, row = signed_in(request, "publish"), _row(request, run_id)
    successor = form.get("successor", "").strip().rstrip("/").rpartition("/")[2]
    try:
        reason = moderation.checked_reason(form.get("reason", ""), longest=moderation.LONGEST_SHOWN)
        if form.get("sure") != "yes":
            raise Refused("sure", "tick this, too: a withdrawn run cannot be shown again")
    except Refused as error:
        return _withdraw_form(request, row, form, {error.place: error.text})
    try:
        site(request).store.withdraw(
            run_id, who=who.name, account_id=who.account_id, reason=reason, successor=successor or None,
            moderator=who.may("moderate"),
        )  # fmt: skip
    except SiteError as error:
        if not successor:
            raise
        return _withdraw_form(request, row, form, {"successor": str(error)})
    return see_other(f"/r/{row.public_id}")


def _withdraw_form(
    request: Request, row: RunRow, form: Mapping[str, str] = NOTHING, errors: Mapping[str, str] = NOTHING
) -> Response:
    return page(request, "withdraw.html", "Withdraw a run", row=row, form=form, errors=errors)


@router.api_route("/r/{run_id}/report", methods=READ)
def reporting(request: Request, run_id: str) -> Response:
    """The form to tell the moderators what is wrong with a run."""
    return page(request, "report.html", "Report a run", row=_row(request, run_id))


@router.post("/r/{run_id}/report")
def report(request: Request, run_id: str, form: Form) -> Response:
    """Tells the moderators. Raises Conflict, TooMany."""
    here, who, row = site(request), viewer(request), _row(request, run_id)
    try:
        reason = moderation.checked_reason(form.get("reason", ""))
    except Refused as error:
        return page(request, "report.html", "Report a run", row=row, form=form, errors={error.place: error.text})
    here.throttle.check("report", address(request.scope))
    with here.database.write() as conn:
        moderation.report(conn, run_id, reason, account_id=who.account_id if who is not None else None,
                          moderator=who is not None and who.may("moderate"))  # fmt: skip
    return see_other(f"/r/{row.public_id}?said=reported")


# --- files ------------------------------------------------------------------------------------------------------------


@router.api_route("/r/{run_id}/record.json", methods=READ)
def record(request: Request, run_id: str) -> Response:
    """Exactly the bytes whose SHA-256 is the content hash."""
    row = _row(request, run_id)
    body = site(request).store.content(row.public_id)
    return whole(request, body, "application/json", headers=_saved(row, "json"), tag=row.content_hash)


@router.api_route("/r/{run_id}/samples.zip", methods=READ)
def samples(request: Request, run_id: str) -> Response:
    """The samples of single requests. Raises NotFound: it came without."""
    row = _row(request, run_id)
    body = site(request).store.samples(row.public_id)
    if body is None:
        raise NotFound("This run came without samples.")
    return whole(request, body, "application/zip", headers=_saved(row, "samples.zip"), tag=row.samples_hash)


@router.api_route("/r/{run_id}/cells.csv", methods=READ)
def cells(request: Request, run_id: str) -> Response:
    """A row a cell, as `flatout report --csv` writes it."""
    row = _row(request, run_id)
    body = csv.write(site(request).store.record(row.public_id)).encode()
    return whole(request, body, "text/csv; charset=utf-8", headers=_saved(row, "csv"))


@router.api_route("/r/{run_id}/table.md", methods=READ)
def table(request: Request, run_id: str) -> Response:
    """The tables as Markdown, to be pasted."""
    row = _row(request, run_id)
    text = md.write(site(request).store.record(row.public_id))
    body = f"{text}\n\n<{site(request).run_url(row.public_id)}>\n".encode()
    return whole(request, body, "text/plain; charset=utf-8")


@router.api_route("/r/{run_id}/page.html", methods=READ)
def page_file(request: Request, run_id: str) -> Response:
    """The page as one file that needs no site. It brings its own policy, and is saved, not shown, from here."""
    row = _row(request, run_id)
    body = site(request).drawings.whole_page(row)
    return whole(request, body, "text/html; charset=utf-8", headers=_saved(row, "html"))


@router.api_route("/r/{run_id}/card.png", methods=READ)
def card(request: Request, run_id: str) -> Response:
    """The picture that other sites show of a link. Raises NotFound: there is nothing to draw."""
    row = _row(request, run_id)
    body = site(request).drawings.card(row)
    if not body:
        raise NotFound("There is no picture of this run: it has no decode cells, or this site cannot draw.")
    # a browser that shows the picture alone puts a style of its own around it
    rules = "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    return whole(request, body, "image/png", headers=_picture(row, rules))


@router.api_route("/r/{run_id}/badge.svg", methods=READ)
def badge_of(request: Request, run_id: str, board: str = "") -> Response:
    """A badge with one speed: of the operating point `board`, or of the fastest single stream. Raises NotFound."""
    row = _row(request, run_id)
    body = badge("flatout", badge_words(*_speed(request, row, board))).encode()
    return whole(request, body, "image/svg+xml", headers=_picture(row, "default-src 'none'"))


@router.api_route("/r/{run_id}/embed", methods=READ)
def embed(request: Request, run_id: str) -> Response:
    """The first numbers as a small page, to stand in a frame of another page."""
    row = _row(request, run_id)
    style, digest = _style()
    body = part("embed.html", row=row, site=site(request).settings, style=style).encode()
    rules = policy(scripted=False, framed=True).replace("'self'", digest, 1)
    return whole(request, body, "text/html; charset=utf-8", headers={"Content-Security-Policy": rules})


def _saved(row: RunRow, ending: str) -> dict[str, str]:
    """The name under which a browser saves the file: of our own id alone."""
    return {"Content-Disposition": f'attachment; filename="flatout-{row.public_id}.{ending}"'}


def _picture(row: RunRow, rules: str) -> dict[str, str]:
    """How long others may keep a picture: no longer than hiding a run may take to have its effect, and that of one that
    is not public not at all."""
    kept = f"public, max-age={PICTURE_S}" if row.state == PUBLIC else "private, no-store"
    return {"Cache-Control": kept, "Content-Security-Policy": rules}


def _speed(request: Request, row: RunRow, name: str) -> tuple[Board | None, float | None]:
    """The operating point and the run's value there; the fastest single stream without a name. Raises NotFound."""
    wanted = boards.parse(name) if name else None
    if name and wanted is None:
        raise NotFound("There is no such operating point. They have names such as single:8192 or total:8192:32.")
    with site(request).database.read() as conn:
        sound = select(points).where(points.c.run_id == row.id, points.c.sound.is_(True))
        rows: list[Any] = list(conn.execute(sound))
    values = {board: held.value for board, held in boards.pooled_boards([rows]).items()}
    if wanted is not None:
        return wanted, values.get(wanted)
    for kind in ("single", "total", "prefill"):
        if mine := {board: value for board, value in values.items() if board.kind == kind}:
            best = max(mine, key=mine.__getitem__)
            return best, mine[best]
    return None, None


@cache
def _style() -> tuple[str, str]:
    """The frame's sheet, and its hash as a policy names it."""
    text = resources.files("flatout.site.static").joinpath("embed.css").read_text(encoding="utf-8")
    return text, f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
