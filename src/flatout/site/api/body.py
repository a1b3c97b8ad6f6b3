"""What a program publishes, as it comes in: a record, or a record with its samples. The sizes are watched on the way
(`middleware.Bodies`), so what is read here fits; what is in it, `intake` checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from flatout.site.api.words import RECORD
from flatout.site.app import site
from flatout.site.errors import Refused
from flatout.site.middleware import too_large

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
    found = form.getlist(name)
    if not found:
        return None
    if len(found) > 1:
        raise Refused(name, "this part is there more than once")
    part = found[0]
    if not isinstance(part, UploadFile):
        return part.encode("utf-8", "surrogatepass"), ""
    content = await part.read(limit + 1)
    if len(content) > limit:
        raise too_large(limit)
    return content, _kind(part.content_type or "")


def _kind(header: str) -> str:
    return header.partition(";")[0].strip().lower()
