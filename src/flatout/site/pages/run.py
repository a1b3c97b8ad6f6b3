"""A run's page: the report's own, with what can be trusted about it, and what can be done with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from flatout.site import moderation, reproductions
from flatout.site.api.runs import visible
from flatout.site.audit import Check
from flatout.site.errors import Refused, SiteError
from flatout.site.index import RunRow
from flatout.site.middleware import address
from flatout.site.pages import csrf, workshop
from flatout.site.pages.answers import READ, Piece, piece
from flatout.site.pages.redirect import see_other
from flatout.site.pages.rendered import REPEATS
from flatout.site.pages.templating import page, part, site_of
from flatout.site.pages.viewer import signed_in, viewer

router: Final = APIRouter()
Form = Annotated[Mapping[str, str], Depends(csrf.posted)]
LEVELS: Final = ("doubt", "note", "good")
FIRST: Final = 3
"""Checks that stand in the open; the others are folded, so that the numbers are near."""
SAID: Final[Mapping[str, str]] = {
    "reported": "Thank you. The moderators will look at this run.",
    "approved": "The run is public now.",
    "hidden": "The run is hidden now; its page says why.",
}


@router.api_route("/r/{run_id}", methods=READ)
def run(request: Request, run_id: str) -> Response:
    """The page. Raises NotFound, and Tombstone for a run that is not shown any more."""
    site, who = site_of(request), viewer(request)
    row = visible(site, who, run_id)
    told, drawn = workshop.run_page(request, row)
    with site.database.read() as conn:
        repeats = reproductions.digest(conn, row)
        deeds = moderation.deeds(conn, run_id) if who is not None and who.may("moderate") else []
    drawn["repeated"] = _repeats(request, row, repeats)
    checks = [Check(*one) for one in json.loads(told["checks"])]
    return page(
        request, "run.html", told["title"], scripted=True, drawn=drawn, row=row, successor=site.store.successor(row),
        replaces=site.store.replaces(row),
        worst=sorted(checks, key=lambda one: LEVELS.index(one.level)), first=FIRST, description=told["description"],
        card=told["card"] == "yes", deeds=deeds,
        mine=who is not None and row.account_id == who.account_id,
        said=SAID.get(request.query_params.get("said", "")), errors={}, form={},
        mark=_mark(site.settings.base_url, row), frame=_frame(site.settings.base_url, row),
    )  # fmt: skip


def _repeats(request: Request, row: RunRow, of: str) -> Piece:
    """Its repeats; `of`: the digest of all that they are. Kept only of runs that are shown."""

    def body() -> str:
        with site_of(request).database.read() as conn:
            return part("repeats_body.html", row=row, repeats=reproductions.reproductions(conn, row))

    if row.state not in workshop.SHOWN:
        return piece(body().encode())
    return workshop.part(request, REPEATS, of, lambda: ({}, body()))[1]["body"]


def _mark(base: str, row: RunRow) -> str:
    """The badge as HTML, to be copied."""
    return f'<a href="{base}/r/{row.public_id}"><img src="{base}/r/{row.public_id}/badge.svg" alt="flatout"></a>'


def _frame(base: str, row: RunRow) -> str:
    """The first numbers as HTML, to be copied."""
    return f'<iframe src="{base}/r/{row.public_id}/embed" width="100%" height="190" title="flatout"></iframe>'


@router.api_route("/r/{run_id}/withdraw", methods=READ)
def withdrawing(request: Request, run_id: str) -> Response:
    """The form to take one's run back. Raises Forbidden, NotFound, Tombstone."""
    signed_in(request, "publish")
    return _withdraw_form(request, visible(site_of(request), viewer(request), run_id), {}, {})


@router.post("/r/{run_id}/withdraw")
def withdraw(request: Request, run_id: str, form: Form) -> Response:
    """Takes the run back. Raises Forbidden, NotFound, Conflict, Tombstone."""
    site, who = site_of(request), signed_in(request, "publish")
    row = visible(site, who, run_id)
    successor = form.get("successor", "").strip().rstrip("/").rpartition("/")[2]
    try:
        reason = moderation.checked_reason(form.get("reason", ""), longest=moderation.LONGEST_SHOWN)
        if form.get("sure") != "yes":
            raise Refused("sure", "tick this, too: a withdrawn run cannot be shown again")
    except Refused as error:
        return _withdraw_form(request, row, form, {error.place: error.text})
    try:
        site.store.withdraw(
            run_id, who=who.name, account_id=who.account_id, reason=reason, successor=successor or None,
            moderator=who.may("moderate"),
        )  # fmt: skip
    except SiteError as error:
        if not successor:
            raise
        return _withdraw_form(request, row, form, {"successor": str(error)})
    return see_other(f"/r/{row.public_id}")


@router.api_route("/r/{run_id}/report", methods=READ)
def reporting(request: Request, run_id: str) -> Response:
    """The form to tell the moderators what is wrong with a run. Raises NotFound, Tombstone."""
    return _report_form(request, visible(site_of(request), viewer(request), run_id), {}, {})


@router.post("/r/{run_id}/report")
def report(request: Request, run_id: str, form: Form) -> Response:
    """Tells the moderators. Raises NotFound, Conflict, Tombstone, TooMany."""
    site, who = site_of(request), viewer(request)
    row = visible(site, who, run_id)
    try:
        reason = moderation.checked_reason(form.get("reason", ""))
    except Refused as error:
        return _report_form(request, row, form, {error.place: error.text})
    site.throttle.check("report", address(request.scope))
    with site.database.write() as conn:
        moderation.report(conn, run_id, reason, account_id=who.account_id if who is not None else None,
                          moderator=who is not None and who.may("moderate"))  # fmt: skip
    return see_other(f"/r/{row.public_id}?said=reported")


def _withdraw_form(request: Request, row: RunRow, form: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    return page(
        request, "withdraw.html", "Withdraw a run", status=422 if errors else 200, row=row, form=form, errors=errors
    )


def _report_form(request: Request, row: RunRow, form: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    return page(
        request, "report.html", "Report a run", status=422 if errors else 200, row=row, form=form, errors=errors
    )
