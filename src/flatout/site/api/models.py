"""What the API takes and gives. Times are RFC 3339 in UTC; null is not known, never 0."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from flatout.site import moderation
from flatout.site.accounts import SCOPES, Scope
from flatout.site.problems import PROBLEM, TITLES
from flatout.site.times import when

RUN_ID = r"^[a-z2-7]{12}$"
State = Literal["public", "queued", "hidden", "withdrawn", "deleted"]


When = Annotated[str | None, BeforeValidator(when)]
"""A time, out of microseconds since 1970."""


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, from_attributes=True)


class Problem(BaseModel):
    """What went wrong (RFC 9457). `detail`: in words, with what to do; `place`: where in what was sent; `id`: the
    number of a fault, for the operator; the others: of a run that is not shown any more."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    place: str | None = None
    id: str | None = None
    state: State | None = None
    reason: str | None = Field(None, description="Why the run has this state.")
    at: str | None = Field(None, description="Since when the run has this state.")
    successor: str | None = Field(None, description="The run that took its place.")


class Named(Model):
    """`key`: for filters; `label`: for people."""

    key: str
    label: str


class Run(Model):
    """A run as lists show it. `trust`: good, notes or doubtful, with how many notes; `*_tok_s`: its best sound figure
    of that kind, null without one."""

    id: str
    url: str
    state: State
    content_hash: str = Field(description="SHA-256 of the canonical record, as `record` gives it.")
    record_id: str
    publisher: str | None = Field(description="The account's name; null: picked up on the site's own machine.")
    received: str | None
    started: str | None
    model: Named
    hardware: Named
    engine: Named
    engine_version: str | None
    precision: str
    speculation: str
    suite: str
    run_state: str
    cells: int
    cells_measured: int
    cells_sound: int
    context_max_tokens: int | None
    single_tok_s: float | None
    total_tok_s: float | None
    prefill_tok_s: float | None
    trust: str
    trust_notes: int
    bytes: int
    samples: bool = Field(description="The samples came along.")


class Check(Model):
    """One thing that was checked. `level`: good, note or doubt."""

    name: str
    level: str
    text: str


class RunDetail(Run):
    """`replaces`: the public run whose place this one, which waits, takes once it is public."""

    checks: list[Check]
    replaced_by: str | None = None
    replaces: str | None = None
    state_reason: str | None = None


class Runs(Model):
    """`next`: the cursor of the next page (`after`), null on the last."""

    runs: list[Run]
    next: str | None


class Published(Model):
    """`created`: false where the site had this very record already."""

    id: str
    url: str
    state: State
    content_hash: str
    created: bool
    checks: list[Check]


class Reason(Model):
    """In words, for everybody who comes by the run's link."""

    reason: Annotated[str, Field(min_length=1, max_length=moderation.LONGEST_SHOWN)]


class ReportReason(Model):
    """What is wrong with the run, for the moderators."""

    reason: Annotated[str, Field(min_length=1, max_length=moderation.LONGEST_REASON)]


class Withdrawal(Reason):
    """`successor`: the run that takes its place, if there is one."""

    successor: Annotated[str, Field(pattern=RUN_ID)] | None = None


class Outcome(Model):
    outcome: Annotated[str, Field(min_length=1, max_length=moderation.LONGEST_REASON)]


class Changed(Model):
    """A run's state after what was asked."""

    id: str
    state: State
    reason: str | None
    successor: str | None


class Token(Model):
    """`start`: its first characters. `works`: neither revoked nor over. `made_with`: the number of the token that it
    was made with."""

    id: int
    label: str
    start: str
    scopes: Annotated[list[Scope], BeforeValidator(lambda scopes: [scope for scope in SCOPES if scope in scopes])]
    created: When = Field(validation_alias="created_us")
    used: When = Field(validation_alias="used_us", description="To the minute.")
    expires: When = Field(validation_alias="expires_us")
    revoked: When = Field(validation_alias="revoked_us")
    made_with: int | None = Field(validation_alias="parent_id")
    works: bool


class NewToken(Model):
    label: Annotated[str, Field(max_length=80)] = ""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=2)] = ["publish"]
    expires_days: Annotated[int, Field(ge=1, le=3650)] | None = None


class MadeToken(Model):
    """`text`: the token itself. It is shown this once and kept nowhere."""

    text: str
    token: Token


class Me(Model):
    """Whose token it is, and what it may."""

    name: str
    scopes: list[Scope]
    token_id: int
    runs: int


class Report(Model):
    id: int
    run: str = Field(validation_alias="public_id")
    reason: str
    made: When = Field(validation_alias="made_us")
    by: str | None
    settled: When = Field(validation_alias="settled_us")
    settled_by: str | None
    outcome: str | None


class Reported(Model):
    """The report's number."""

    id: int


class Waiting(Model):
    """`replaces`: the public run whose place it takes once it is public."""

    id: str = Field(validation_alias="public_id")
    model: str
    hardware: str
    engine: str
    received: When = Field(validation_alias="received_us")
    publisher: str | None = Field(validation_alias="who")
    trust: str
    replaces: str | None


class Queue(Model):
    """What waits for a moderator, oldest first; `*_all`: how many there are, more than are listed perhaps."""

    runs: list[Waiting]
    reports: list[Report]
    runs_all: int
    reports_all: int


class Deed(Model):
    at: When = Field(validation_alias="at_us")
    who: str
    what: str
    run: str | None = Field(validation_alias="public_id")
    detail: str | None


class Deeds(Model):
    """What was done, newest first."""

    deeds: list[Deed]


class Board(Model):
    """An operating point that is ranked."""

    board: str
    title: str
    about: str
    unit: str


class BoardCount(Board):
    configurations: int


class Boards(Model):
    boards: list[BoardCount]


class Standing(Model):
    """A configuration on a board. `place` is shared where no difference is shown; `low`, `high`: the 95 % interval,
    null where it is not known; `run`: its newest run; `runs`: how many are pooled. `others`: how many other publishers
    measured something else, from `others_low` to `others_high`, and are left out; `doubtful`: all its runs are."""

    place: int
    value: float
    low: float | None
    high: float | None
    runs: int
    run: str
    url: str
    started: str | None
    model: Named
    hardware: Named
    engine: Named
    engine_version: str | None
    precision: str
    speculation: str
    others: int
    others_low: float | None
    others_high: float | None
    doubtful: bool


class Ranking(Board):
    standings: list[Standing]


class ComparedFigure(Model):
    """`ratio`: b / a with its 95 % interval; `could_show`: the smallest relative difference these runs would show."""

    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    interval: str | None
    verdict: str
    reason: str | None
    could_show: float | None


class ComparedCell(Model):
    cell: str
    phase: str
    context_tokens: int | None
    concurrency: int
    a_status: list[str]
    b_status: list[str]
    doubts: list[str]
    notes: list[str]
    figures: dict[str, ComparedFigure]


class Difference(Model):
    what: str
    name: str
    a: str
    b: str


class ComparedPair(Model):
    """A later side (`b`) against the first (`a`)."""

    a: str
    b: str
    letter: str
    differences: list[Difference]
    not_known: list[str]
    mean_ratio: float | None
    cells: list[ComparedCell]
    only_a: list[str]
    only_b: list[str]


class ComparedSide(BaseModel):
    """`is`: the configuration in words; `runs`: the records' own names."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str
    what: str = Field(alias="is")
    runs: list[str]


class Comparison(Model):
    """As `flatout compare --json` prints it."""

    format: Literal["flatout-comparison/1"]
    sides: list[ComparedSide]
    pairs: list[ComparedPair]
    notes: list[str]


RECORD: Final = {"$ref": "#/components/schemas/Record"}
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_ALWAYS: Final = (400, 414, 421, 422, 429, 500, 503)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these errors and those that any route may answer with."""
    return {
        status: {"description": TITLES[status], "content": {PROBLEM: {"schema": _PROBLEM}}}
        for status in sorted({*_ALWAYS, *statuses})
    }
