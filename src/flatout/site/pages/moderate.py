"""For moderators: what waits, what was reported, and what was done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Request, Response

from flatout.site import moderation
from flatout.site.answers import READ
from flatout.site.errors import NotFound, Refused
from flatout.site.html import NOTHING, page, see_other
from flatout.site.session import Form, signed_in
from flatout.site.state import site

router: Final = APIRouter()
DEEDS: Final = 50


@router.api_route("/moderate", methods=READ)
def moderate(request: Request) -> Response:
    """Runs that wait, open reports, and the last deeds. Raises Forbidden."""
    signed_in(request, "moderate")
    return _page(request)


@router.post("/moderate/{run_id}/approve")
def approve(request: Request, run_id: str, form: Form) -> Response:
    """Makes a run public. Raises Forbidden, NotFound, Conflict, Gone."""
    who = signed_in(request, "moderate")
    site(request).store.approve(run_id, who=who.name)
    return see_other(f"/r/{run_id}?said=approved")


@router.post("/moderate/{run_id}/hide")
def hide(request: Request, run_id: str, form: Form) -> Response:
    """Hides a run and settles its reports with the same reason. Raises Forbidden, NotFound, Conflict, Gone."""
    who, here = signed_in(request, "moderate"), site(request)
    row = here.store.row(run_id)
    try:
        reason = moderation.checked_reason(form.get("reason", ""), longest=moderation.LONGEST_SHOWN)
    except Refused as error:
        return _page(request, form, {f"reason-{row.public_id}": error.text}, hiding=row.public_id)
    here.store.hide(row.public_id, who=who.name, reason=reason, account_id=who.account_id)
    return see_other(f"/r/{row.public_id}?said=hidden")


@router.post("/moderate/reports/{report_id}/settle")
def settle(request: Request, report_id: str, form: Form) -> Response:
    """Settles a report with what was decided. Raises Forbidden, NotFound, Conflict."""
    who, here = signed_in(request, "moderate"), site(request)
    if not (report_id.isascii() and report_id.isdigit() and len(report_id) < 16):
        raise NotFound("There is no such report.")
    try:
        with here.database.write() as conn:
            moderation.settle(conn, int(report_id), form.get("outcome", ""), who=who.name, account_id=who.account_id)
    except Refused as error:
        return _page(request, form, {f"outcome-{report_id}": error.text})
    return see_other("/moderate?said=settled")


def _page(
    request: Request, form: Mapping[str, str] = NOTHING, errors: Mapping[str, str] = NOTHING, hiding: str = ""
) -> Response:
    with site(request).database.read() as conn:
        queue, deeds = moderation.queue(conn), moderation.deeds(conn, limit=DEEDS)
    return page(
        request, "moderate.html", "Moderation", queue=queue, deeds=deeds, form=form, errors=errors, hiding=hiding
    )
