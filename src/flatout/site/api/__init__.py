"""The API, /api/v1: what programs may ask and send. One file a concern; `words` is what it says about itself."""

from fastapi import APIRouter, Depends

from flatout.site.api import boards, me, moderating, runs
from flatout.site.api.auth import only_known
from flatout.site.api.words import ABOUT, TAGS, openapi

router = APIRouter(prefix="/api/v1", dependencies=[Depends(only_known)])
for _part in (runs, boards, me, moderating):
    router.include_router(_part.router)

__all__ = ["ABOUT", "TAGS", "openapi", "router"]
