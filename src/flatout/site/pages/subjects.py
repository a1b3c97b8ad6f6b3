"""The page of a model, a piece of hardware, or an engine."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from flatout.site import listing
from flatout.site.boards import KINDS
from flatout.site.errors import NotFound
from flatout.site.listing import Filter
from flatout.site.pages import workshop
from flatout.site.pages.answers import READ
from flatout.site.pages.boards import HEADS
from flatout.site.pages.rendered import SUBJECT
from flatout.site.pages.templating import page, part, site_of
from flatout.site.pages.whiskers import axis, whisker
from flatout.site.subjects import Fastest, Heading, SubjectKind, heading, subject

router: Final = APIRouter()
ROWS: Final = 20
LETTERS: Final = {"model": "m", "hardware": "h", "engine": "e"}


@router.api_route("/models/{key}", methods=READ)
def model(request: Request, key: str) -> Response:
    """Where a model runs fastest. Raises NotFound."""
    return _page(request, "model", key)


@router.api_route("/hardware/{key}", methods=READ)
def hardware(request: Request, key: str) -> Response:
    """What runs fastest on a piece of hardware. Raises NotFound."""
    return _page(request, "hardware", key)


@router.api_route("/engines/{key}", methods=READ)
def engine(request: Request, key: str) -> Response:
    """What an engine serves fastest. Raises NotFound."""
    return _page(request, "engine", key)


def _page(request: Request, kind: SubjectKind, key: str) -> Response:
    with site_of(request).database.read() as conn:
        of = heading(conn, kind, key) if len(key) <= listing.LONGEST else None
    if of is None:
        raise NotFound(f"No public run here has this {kind}. All that there is stands in the list of runs.")
    _, made = workshop.part(request, SUBJECT, of.digest, lambda: ({}, _body(request, of)))
    return page(request, "subject.html", f"{of.label} · {kind}", of=of, drawn=made)


def _body(request: Request, of: Heading) -> str:
    site, letter = site_of(request), LETTERS[of.kind]
    with site.database.read() as conn:
        found = subject(conn, of)
        newest = listing.find(conn, Filter.from_query({letter: of.key}), limit=ROWS, secret=site.settings.secret)
    points = {"single": found.single, "total": found.total, "prefill": found.prefill, "users": found.users}
    groups = [(HEADS[name], drawn(points[name])) for name in KINDS if points[name]]
    return part("subject_body.html", subject=found, groups=groups, rows=newest.rows, letter=letter)


def drawn(points: list[Fastest]) -> list[tuple[Fastest, list[Markup]]]:
    """Each operating point with its rows' small pictures, all of a point on one axis."""
    made = []
    for point in points:
        end = axis(point.rows)
        made.append((point, [whisker(row, end, open_ended=row.or_more) for row in point.rows]))
    return made
