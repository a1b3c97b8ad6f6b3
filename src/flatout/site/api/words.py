"""The API's description: what it says about itself and about its errors."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from flatout.record import Record
from flatout.site.api.models import Problem
from flatout.site.problems import PROBLEM, TITLES

ABOUT: Final = (
    "Runs of flatout, the speed test for LLM servers: publish, read, compare, rank. Whatever goes wrong is told as "
    "application/problem+json (RFC 9457) in words. Limits on how often one may ask are told in RateLimit and "
    "Retry-After. Writing takes a token; reading public runs takes none."
)
TAGS: Final[list[dict[str, Any]]] = [
    {"name": "runs", "description": "Publish, list, read, compare and withdraw runs."},
    {"name": "boards", "description": "Leaderboards by operating point."},
    {"name": "me", "description": "The token's own account."},
    {"name": "moderation", "description": "Reports, the queue, hiding. All but reporting needs the scope moderate."},
]
_ALWAYS: Final = (400, 414, 421, 422, 429, 500, 503)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these errors and those that any route may answer with."""
    return {
        status: {"description": TITLES[status], "content": {PROBLEM: {"schema": _REF}}}
        for status in sorted({*_ALWAYS, *statuses})
    }


RECORD: Final = {"$ref": "#/components/schemas/Record"}
_REF: Final = {"$ref": "#/components/schemas/Problem"}


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document. FastAPI's own error models do not stand in it, for no route answers with them."""
    made = get_openapi(
        title=f"{app.title}: API",
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    schemas = made["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for model in (Problem, Record):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = {**schema.pop("$defs", {}), model.__name__: schema}
        assert not parts.keys() & schemas.keys(), "two models of one name"
        schemas |= parts
    return made
