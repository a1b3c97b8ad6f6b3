"""The API, /api/v1: what programs may ask and send, and what it says about itself. One file a concern."""

from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from flatout.record import Record
from flatout.site.api import account, boards, moderation, runs
from flatout.site.api.auth import only_known
from flatout.site.api.models import Problem

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
router = APIRouter(prefix="/api/v1", dependencies=[Depends(only_known)])
for _part in (runs, boards, account, moderation):
    router.include_router(_part.router)


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document. FastAPI's own error models do not stand in it, for no route answers with them."""
    document = get_openapi(
        title=f"{app.title}: API", version=app.version, description=app.description, routes=app.routes,
        tags=app.openapi_tags,
    )  # fmt: skip
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for model in (Problem, Record):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = {**schema.pop("$defs", {}), model.__name__: schema}
        assert not parts.keys() & schemas.keys(), "two models of one name"
        schemas |= parts
    return document
