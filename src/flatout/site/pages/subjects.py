"""The page of a model, a piece of hardware, or an engine."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from flatout.site import listing
from flatout.site.boards import KINDS
from flatout.site.errors import NotFound
from flatout.site.listing import Filter
from flatout.site.pages.answers import READ
from flatout.site.pages.boards import HEADS
from flatout.site.pages.templating import page, site_of
from flatout.site.pages.whiskers import axis, whisker
from flatout.site.subjects import Fastest, SubjectKind, subject

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
    site = site_of(request)
    with site.database.read() as conn:
        found = subject(conn, kind, key) if len(key) <= listing.LONGEST else None
        if found is None:
            raise NotFound(f"No public run here has this {kind}. All that there is stands in the list of runs.")
        mine = Filter.from_query({LETTERS[kind]: key})
        newest = listing.find(conn, mine, limit=ROWS, secret=site.settings.secret)
    points = {"single": found.single, "total": found.total, "prefill": found.prefill, "users": found.users}
    groups = [(HEADS[name], drawn(points[name])) for name in KINDS if points[name]]
    return page(
        request, "subject.html", f"{found.label} · {kind}", subject=found, groups=groups, rows=newest.rows,
        letter=LETTERS[kind],
    )  # fmt: skip


def drawn(points: list[Fastest]) -> list[tuple[Fastest, list[Markup]]]:
    """Each operating point with its rows' small pictures, all of a point on one axis."""
    made = []
    for point in points:
        end = axis(point.rows)
        made.append((point, [whisker(row, end, open_ended=row.or_more) for row in point.rows]))
    return made
