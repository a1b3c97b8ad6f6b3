"""A configuration's speed over time."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from flatout.site.errors import NotFound
from flatout.site.history import MOST_RUNS, history, shift_words
from flatout.site.pages.answers import READ
from flatout.site.pages.templating import page, site_of
from flatout.site.pages.traces import trace

router: Final = APIRouter()
_KEY_CHARS: Final = 64


@router.api_route("/history/{key}", methods=READ)
def over_time(request: Request, key: str) -> Response:
    """All public runs of a configuration, over the versions of its engine. Raises NotFound."""
    with site_of(request).database.read() as conn:
        found = history(conn, key) if len(key) <= _KEY_CHARS else None
    if found is None:
        raise NotFound("No public run has this configuration. A run's page links to its history.")
    series = []
    for one in found.series:
        many = f"{len(one.runs)} runs" if len(one.runs) != 1 else "1 run"
        label = f"{one.board.title} over {many}, {len(one.shifts)} level shifts"
        series.append((one, trace(one.runs, one.shifts, label), [shift_words(shift) for shift in one.shifts]))
    shown = {run.public_id: run for one, _, _ in series for run in one.runs}
    rows = sorted(shown.values(), key=lambda run: run.at_us, reverse=True)
    values = {(one.board, run.public_id): run for one, _, _ in series for run in one.runs}
    return page(
        request, "history.html", f"{found.model} on {found.hardware} over time", history=found, series=series,
        runs=rows, values=values, most=MOST_RUNS, columns=[one.board for one, _, _ in series][:8],
    )  # fmt: skip
