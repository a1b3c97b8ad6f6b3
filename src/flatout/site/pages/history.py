"""A configuration's speed over time."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from flatout.site.errors import NotFound
from flatout.site.history import MOST_RUNS, digest, history, shift_words
from flatout.site.pages import workshop
from flatout.site.pages.answers import READ
from flatout.site.pages.rendered import HISTORY
from flatout.site.pages.templating import page, part, site_of
from flatout.site.pages.traces import trace

router: Final = APIRouter()
_KEY_CHARS: Final = 64
_COLUMNS: Final = 8


@router.api_route("/history/{key}", methods=READ)
def over_time(request: Request, key: str) -> Response:
    """All public runs of a configuration, over the versions of its engine. Raises NotFound."""
    with site_of(request).database.read() as conn:
        of = digest(conn, key) if len(key) <= _KEY_CHARS else None
    if of is None:
        raise _nothing()
    told, made = workshop.part(request, HISTORY, of, lambda: _made(request, key))
    return page(request, "history.html", told["title"], about=told["about"], drawn=made)


def _made(request: Request, key: str) -> tuple[dict[str, str], str]:
    """(title and description, body). Raises NotFound where the last run has just gone."""
    with site_of(request).database.read() as conn:
        found = history(conn, key)
    if found is None:
        raise _nothing()
    series = []
    for one in found.series:
        many = f"{len(one.runs)} runs" if len(one.runs) != 1 else "1 run"
        label = f"{one.board.title} over {many}, {len(one.shifts)} level shifts"
        series.append((one, trace(one.runs, one.shifts, label), [shift_words(shift) for shift in one.shifts]))
    shown = {run.public_id: run for one, _, _ in series for run in one.runs}
    body = part(
        "history_body.html", history=found, series=series, most=MOST_RUNS,
        runs=sorted(shown.values(), key=lambda run: run.at_us, reverse=True),
        values={(one.board, run.public_id): run for one, _, _ in series for run in one.runs},
        columns=[one.board for one, _, _ in series][:_COLUMNS],
    )  # fmt: skip
    where = f"{found.model} on {found.hardware}"
    return {"title": f"{where} over time", "about": f"{where} with {found.engine}: {found.runs} runs over time."}, body


def _nothing() -> NotFound:
    return NotFound("No public run has this configuration. A run's page links to its history.")
