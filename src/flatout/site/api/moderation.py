"""Reports by anybody; the queue, hiding and settling by moderators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from flatout.site import moderation
from flatout.site.api.auth import OPTIONAL, JsonOnly, Moderator, Visitor, limited
from flatout.site.api.models import Changed, Deed, Deeds, Outcome, Queue, Reason, Report, Reported, ReportReason, errors
from flatout.site.api.runs import Id, RunId, changed
from flatout.site.state import address, site

router = APIRouter(tags=["moderation"])


@router.post(
    "/runs/{run_id}/report", status_code=201, summary="Report a run", responses=errors(401, 404, 409, 413, 415),
    dependencies=JsonOnly, openapi_extra=OPTIONAL,
    description="Tells the moderators what is wrong with a run. Needs no token; with one, they see whose it is.",
)  # fmt: skip
def report(request: Request, response: Response, who: Visitor, run_id: RunId, body: ReportReason) -> Reported:
    limited(request, response, "report", address(request.scope))
    with site(request).database.write() as conn:
        number = moderation.report(conn, run_id, body.reason, account_id=who.account_id if who is not None else None,
                                   moderator=who is not None and who.may("moderate"))  # fmt: skip
    return Reported(id=number)


@router.get("/moderation/queue", summary="What waits for a moderator", responses=errors(401, 403))
def queue(request: Request, who: Moderator) -> Queue:
    with site(request).database.read() as conn:
        return Queue.model_validate(moderation.queue(conn))


@router.post(
    "/runs/{run_id}/approve", summary="Show a run that waits, or a hidden one again",
    responses=errors(401, 403, 404, 409, 410),
    description="The run that it was published to replace is withdrawn with this one as its successor.",
)  # fmt: skip
def approve(request: Request, who: Moderator, run_id: RunId) -> Changed:
    site(request).store.approve(run_id, who=who.name)
    return changed(request, run_id)


@router.post(
    "/runs/{run_id}/hide", summary="Hide a run, with a reason that is shown",
    responses=errors(401, 403, 404, 409, 410, 413, 415), dependencies=JsonOnly,
    description="What is open of the reports about it is settled with that reason.",
)  # fmt: skip
def hide(request: Request, who: Moderator, run_id: RunId, body: Reason) -> Changed:
    reason = moderation.checked_reason(body.reason, longest=moderation.LONGEST_SHOWN)
    site(request).store.hide(run_id, who=who.name, reason=reason, account_id=who.account_id)
    return changed(request, run_id)


@router.post(
    "/reports/{report_id}/settle", summary="Settle a report", responses=errors(401, 403, 404, 409, 413, 415),
    dependencies=JsonOnly,
)  # fmt: skip
def settle(request: Request, who: Moderator, report_id: Annotated[int, Path(ge=1, le=2**53)], body: Outcome) -> Report:
    with site(request).database.write() as conn:
        settled = moderation.settle(conn, report_id, body.outcome, who=who.name, account_id=who.account_id)
    return Report.model_validate(settled)


@router.get("/moderation/deeds", summary="Who did what when, newest first", responses=errors(401, 403, 404))
def deeds(
    request: Request,
    who: Moderator,
    run: Annotated[Id | None, Query(description="Of this run alone.")] = None,
    limit: Annotated[int, Query(ge=1, le=moderation.MOST_SHOWN)] = 100,
) -> Deeds:
    with site(request).database.read() as conn:
        return Deeds(deeds=[Deed.model_validate(deed) for deed in moderation.deeds(conn, run, limit=limit)])
