"""Leaderboards: which there are, and one of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from flatout.site import boards
from flatout.site.api.models import Board, BoardCount, Boards, Ranking, Standing, errors
from flatout.site.api.runs import Key, named
from flatout.site.errors import NotFound
from flatout.site.state import site
from flatout.site.times import when

router = APIRouter(tags=["boards"])


@router.get("/boards", summary="The boards that rank something", responses=errors())
def all_boards(request: Request) -> Boards:
    with site(request).database.read() as conn:
        ranked = boards.all_boards(conn)
    counts = [BoardCount(**_about(one.board).model_dump(), configurations=one.configurations) for one in ranked]
    return Boards(boards=counts)


@router.get(
    "/boards/{board}", summary="One board, best first", responses=errors(404),
    description="Configurations at one operating point: `single:C`, `total:C:N`, `prefill:C` or `users:C:T` with C the "
    "context in tokens, N the number of simultaneous requests, T the tok/s that each must have. Places are shared "
    "where the runs show no difference. Each publisher's runs are pooled, then those publishers that agree with the "
    "one in the middle. A board that nothing stands on is empty.",
)  # fmt: skip
def ranking(
    request: Request,
    board: Annotated[str, Path(max_length=40, pattern=r"^[a-z]+(:[0-9]+){1,2}$", examples=["single:8192"])],
    m: Key | None = None,
    h: Key | None = None,
    e: Key | None = None,
    limit: Annotated[int, Query(ge=1, le=boards.MOST_ROWS)] = 100,
) -> Ranking:
    known = boards.parse(board)
    if known is None:
        raise NotFound("there can be no such board; /api/v1/boards lists those that rank something")
    with site(request).database.read() as conn:
        rows = boards.top(conn, board, model=m, hardware=h, engine=e, limit=limit)
    return Ranking(
        **_about(known).model_dump(), standings=[_standing(site(request).run_url(r.public_id), r) for r in rows]
    )


def _about(board: boards.Board) -> Board:
    return Board(board=board.name, title=board.title, about=board.about, unit=board.unit)


def _standing(url: str, row: boards.Standing) -> Standing:
    return Standing(
        place=row.place, value=row.value, low=row.low, high=row.high, runs=row.runs, run=row.public_id, url=url,
        started=when(row.started_us), **named(row), engine_version=row.engine_version, precision=row.precision,
        speculation=row.speculation, others=row.others, others_low=row.others_low, others_high=row.others_high,
        doubtful=row.doubtful,
    )  # fmt: skip
