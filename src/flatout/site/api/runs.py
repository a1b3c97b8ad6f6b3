"""Runs: publish, list, read, compare, withdraw. Sizes of what is sent are watched on the way (`middleware.Bodies`), so
what is read here fits; what is in it, `intake` checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from flatout.site import audit, intake, listing, moderation
from flatout.site.accounts import Who
from flatout.site.answers import matches
from flatout.site.api.auth import OPTIONAL, JsonOnly, Publisher, PublisherOrModerator, Visitor, limited
from flatout.site.api.models import (
    RECORD,
    RUN_ID,
    Changed,
    Check,
    Comparison,
    Named,
    Published,
    Run,
    RunDetail,
    Runs,
    State,
    Withdrawal,
    errors,
)
from flatout.site.errors import NotFound, Refused
from flatout.site.problems import too_large
from flatout.site.state import Site, address, site
from flatout.site.times import when

if TYPE_CHECKING:
    from flatout.record import Record
    from flatout.site.boards import Standing
    from flatout.site.index import RunRow

router = APIRouter(tags=["runs"])

RunId = Annotated[str, Path(pattern=RUN_ID, description="The run's id, as in its link.", examples=["abcdefgh2345"])]
Id = Annotated[str, Field(pattern=RUN_ID)]
Key = Annotated[str, Field(max_length=120)]
Text = Annotated[str, Field(max_length=listing.LONGEST)]
MOST_COMPARED: Final = 8
STATES: Final = get_args(State)
FILES: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "Not changed since (If-None-Match)"}}


JSON: Final = "application/json"
GZIP: Final = frozenset({"application/gzip", "application/x-gzip"})
ZIP: Final = frozenset({"application/zip", "application/x-zip-compressed", "application/octet-stream"})
_HOW: Final = (
    "Send the record as application/json (Content-Encoding: gzip may be), or as multipart/form-data with the parts "
    "“record” (application/json or application/gzip) and “samples” (application/zip)."
)

REQUEST_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "A flatout-record/1, which `flatout run` writes. It may be compressed (Content-Encoding: gzip).",
        "content": {
            JSON: {"schema": RECORD},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["record"],
                    "additionalProperties": False,
                    "properties": {
                        "record": {"type": "string", "contentMediaType": JSON},
                        "samples": {"type": "string", "contentMediaType": "application/zip"},
                    },
                },
                "encoding": {
                    "record": {"contentType": "application/json, application/gzip"},
                    "samples": {"contentType": "application/zip"},
                },
            },
        },
    }
}


@dataclass(frozen=True, slots=True)
class Sent:
    """`record`: as it came, `gzipped` or not."""

    record: bytes
    gzipped: bool
    samples: bytes | None = None


@router.post(
    "/runs", status_code=201, summary="Publish a run", openapi_extra=REQUEST_BODY,
    responses={200: {"model": Published, "description": "The site has this very record already"},
               **errors(401, 403, 404, 408, 409, 410, 413, 415)},
    description="Takes one record, with its samples if they come along. The same record again is the same run, so it "
    "may be sent again after any failure. A record that holds a secret, an address or a user's name is refused with "
    "the place. On a moderated site the run waits for approval (`state`: queued), and what it `replaces` stays public "
    "until then.",
)  # fmt: skip
async def publish(
    request: Request,
    response: Response,
    who: Publisher,
    body: Annotated[Sent, Depends(sent)],
    replaces: Annotated[Id | None, Query(description="One's own run whose place this one takes.")] = None,
) -> Published:
    limited(request, response, "publish", f"account:{who.account_id}", address(request.scope))
    # Few at a time: a record takes many times its size while it is read, and the other threads serve readers.
    here = site(request)
    published = await anyio.to_thread.run_sync(_take, here, who, body, replaces, limiter=here.publishing)
    response.status_code = 201 if published.created else 200
    response.headers["Location"] = f"/api/v1/runs/{published.id}"
    return published


def _take(here: Site, who: Who, body: Sent, replaces: str | None) -> Published:
    taken = intake.take(body.record, gzipped=body.gzipped, settings=here.settings)
    samples = None
    if body.samples is not None:
        samples = intake.take_samples(body.samples, taken.record, here.settings)
    kept = here.store.publish(taken, account_id=who.account_id, who=who.name, samples=samples, replaces=replaces)
    return Published(
        id=kept.public_id, url=here.run_url(kept.public_id), state=state(kept.state), created=kept.created,
        content_hash=taken.content_hash, checks=checks(taken.record),
    )  # fmt: skip


@router.get(
    "/runs", summary="List runs, newest first", responses=errors(),
    description="Public runs that fit all filters. `next` is the cursor of the next page: give it as `after`.",
)  # fmt: skip
def list_runs(
    request: Request,
    q: Annotated[Text | None, Query(description="Words in the model, hardware, engine, suite.")] = None,
    m: Annotated[Key | None, Query(description="Model key.")] = None,
    h: Annotated[Key | None, Query(description="Hardware key.")] = None,
    e: Annotated[Key | None, Query(description="Engine key.")] = None,
    p: Annotated[Key | None, Query(description="Precision.")] = None,
    s: Annotated[Key | None, Query(description="Speculative method.")] = None,
    c: Annotated[Text | None, Query(description="Context that was measured: tokens, or 8k.")] = None,
    from_: Annotated[
        Text | None, Query(alias="from", description="Started on this day (2026-11-30, UTC) or later.")
    ] = None,
    to: Annotated[Text | None, Query(description="Started on this day or before.")] = None,
    after: Annotated[Text | None, Query(description="Cursor.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> Runs:
    here = site(request)
    asked = {"q": q, "m": m, "h": h, "e": e, "p": p, "s": s, "c": c, "from": from_, "to": to, "after": after}
    wanted = listing.Filter.from_query({name: text for name, text in asked.items() if text is not None})
    with here.database.read() as conn:
        page = listing.find(conn, wanted, limit=limit, secret=here.settings.secret)
    return Runs(runs=[run(here, row) for row in page.rows], next=page.next)


@router.get(
    "/runs/{run_id}", summary="One run and its checks", responses=errors(401, 404, 410), openapi_extra=OPTIONAL,
    description="A run that waits for approval is there for its publisher and for moderators. One that was hidden, "
    "withdrawn or deleted answers 410 with the reason, and the run that took its place.",
)  # fmt: skip
def get_run(request: Request, who: Visitor, run_id: RunId) -> RunDetail:
    here = site(request)
    row = here.visible(who, run_id)
    return RunDetail(
        **run(here, row).model_dump(), checks=checks(here.store.record(run_id), row.received_us),
        state_reason=row.state_reason, replaced_by=here.store.successor(row), replaces=here.store.replaces(row),
    )  # fmt: skip


@router.get(
    "/runs/{run_id}/record", summary="The record itself",
    responses={200: {"content": {"application/json": {"schema": RECORD}}}, **FILES, **errors(401, 404, 410)},
    openapi_extra=OPTIONAL, response_class=Response, description="Exactly the bytes whose SHA-256 is `content_hash`.",
)  # fmt: skip
def get_record(request: Request, who: Visitor, run_id: RunId) -> Response:
    here = site(request)
    row = here.visible(who, run_id)
    return _file(request, run_id, "json", "application/json", row.content_hash, lambda: here.store.content(run_id))


@router.get(
    "/runs/{run_id}/samples", summary="The samples, as a zip of .npz files",
    responses={200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}, **FILES,
               **errors(401, 404, 410)},
    openapi_extra=OPTIONAL, response_class=Response,
)  # fmt: skip
def get_samples(request: Request, who: Visitor, run_id: RunId) -> Response:
    here = site(request)
    row = here.visible(who, run_id)
    if row.samples_hash is None:
        raise NotFound("this run came without samples")
    return _file(request, run_id, "zip", "application/zip", row.samples_hash, lambda: here.store.samples(run_id) or b"")


@router.get(
    "/compare", summary="Compare runs", responses=errors(404, 410), response_model=Comparison,
    description="The first is what the others are compared with; runs of one configuration count as repeats. The "
    "answer is what `flatout compare --json` prints. The runs may have 4,000 cells together.",
)  # fmt: skip
def compare_runs(
    request: Request,
    r: Annotated[list[Id], Query(min_length=2, max_length=MOST_COMPARED, description="Ids, each once.")],
) -> Response:
    here = site(request)
    if len(set(r)) < len(r):
        raise Refused("r", "name each run once")
    rows = [here.visible(None, run_id) for run_id in r]
    count = partial(here.throttle.check, "compare", address(request.scope))
    words, pieces = here.drawings.comparison(rows, count, data=True)
    if "error" in words:
        raise Refused("r", words["error"])
    return Response(pieces["json"].plain, media_type="application/json")


@router.post(
    "/runs/{run_id}/withdraw", summary="Withdraw one's own run", responses=errors(401, 403, 404, 409, 410, 413, 415),
    dependencies=JsonOnly,
    description="It leaves a tombstone with the reason, and a link to the run that takes its place if there is one. A "
    "moderator may withdraw any run.",
)  # fmt: skip
def withdraw(request: Request, who: PublisherOrModerator, run_id: RunId, body: Withdrawal) -> Changed:
    reason = moderation.checked_reason(body.reason, longest=moderation.LONGEST_SHOWN)
    site(request).store.withdraw(
        run_id, who=who.name, account_id=who.account_id, reason=reason, successor=body.successor,
        moderator=who.may("moderate"),
    )  # fmt: skip
    return changed(request, run_id)


def run(here: Site, row: RunRow) -> Run:
    return Run(
        id=row.public_id, url=here.run_url(row.public_id), state=state(row.state), content_hash=row.content_hash,
        record_id=row.record_id, publisher=row.account, received=when(row.received_us), started=when(row.started_us),
        **named(row), engine_version=row.engine_version, precision=row.precision, speculation=row.speculation,
        suite=row.suite, run_state=row.run_state, cells=row.cells, cells_measured=row.cells_measured,
        cells_sound=row.cells_sound, context_max_tokens=row.context_max, single_tok_s=row.single_tok_s,
        total_tok_s=row.total_tok_s, prefill_tok_s=row.prefill_tok_s, trust=row.trust, trust_notes=row.trust_notes,
        bytes=row.bytes, samples=row.samples_hash is not None,
    )  # fmt: skip


def named(row: RunRow | Standing) -> dict[str, Named]:
    """What was measured, by key and label."""
    return {
        "model": Named(key=row.model_key, label=row.model),
        "hardware": Named(key=row.hardware_key, label=row.hardware),
        "engine": Named(key=row.engine_key, label=row.engine),
    }


def changed(request: Request, run_id: str) -> Changed:
    store = site(request).store
    row = store.row(run_id)
    return Changed(id=run_id, state=state(row.state), reason=row.state_reason, successor=store.successor(row))


def checks(record: Record, received_us: int | None = None) -> list[Check]:
    """As the run's page tells them. `received_us`: when the site got it; None: now."""
    return [Check.model_validate(one) for one in audit.checks(record, received_us=received_us)]


def state(text: str) -> State:
    assert text in STATES, text
    return cast(State, text)


def _file(request: Request, run_id: str, ending: str, kind: str, digest: str, read: Callable[[], bytes]) -> Response:
    """A file by its hash: a reader that has it is told so. Its name is made of our id alone. It may be withdrawn at any
    time, so nobody shall keep it without asking again."""
    headers = {"ETag": f'"{digest}"', "Cache-Control": "no-cache"}
    if matches(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="flatout-{run_id}.{ending}"'
    return Response(read(), media_type=kind, headers=headers)


# --- what is published, as it comes in --------------------------------------------------------------------------------


async def sent(request: Request) -> Sent:
    """The body's parts. Raises HTTPException: 415 for any other type or encoding, 413, 408; Refused."""
    kind = _kind(request.headers.get("content-type", ""))
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if kind == JSON:
        if coding not in ("gzip", "identity"):
            raise HTTPException(415, f"A record may be compressed with gzip, nothing else. {_HOW}")
        return Sent(await request.body(), coding == "gzip")
    if kind != "multipart/form-data":
        raise HTTPException(415, _HOW)
    if coding != "identity":
        raise HTTPException(415, f"The parts are compressed, not the whole. {_HOW}")
    return await _parts(request)


async def _parts(request: Request) -> Sent:
    settings = site(request).settings
    async with request.form(max_files=2, max_fields=2, max_part_size=settings.max_body_bytes) as form:
        record = await _part(form, "record", settings.max_body_bytes)
        if record is None:
            raise Refused("record", f"this part is missing. {_HOW}")
        samples = await _part(form, "samples", settings.max_samples_bytes)
        if {name for name, _ in form.multi_items()} - {"record", "samples"}:
            raise Refused("body", f"it has other parts than it may have. {_HOW}")
        if record[1] not in GZIP | {JSON, ""}:
            raise HTTPException(415, f"The part “record” has another type. {_HOW}")
        if samples is not None and samples[1] not in ZIP | {""}:
            raise HTTPException(415, f"The part “samples” has another type. {_HOW}")
        return Sent(record[0], record[1] in GZIP, samples[0] if samples is not None else None)


async def _part(form: FormData, name: str, limit: int) -> tuple[bytes, str] | None:
    """(content, type) of the one part of that name. The file's name is never looked at."""
    parts = form.getlist(name)
    if not parts:
        return None
    if len(parts) > 1:
        raise Refused(name, "this part is there more than once")
    part = parts[0]
    if not isinstance(part, UploadFile):
        return part.encode("utf-8", "surrogatepass"), ""
    content = await part.read(limit + 1)
    if len(content) > limit:
        raise too_large(limit)
    return content, _kind(part.content_type or "")


def _kind(header: str) -> str:
    return header.partition(";")[0].strip().lower()
