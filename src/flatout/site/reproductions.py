"""Other runs of the same configuration, and whether they agree with this one cell by cell."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Select, select

from flatout.compare.ratio import Estimate, Ratio, estimate, level_of, ratio
from flatout.flags import Status
from flatout.show import numbers
from flatout.site.database import unindexed
from flatout.site.index import RunRow, of_history
from flatout.site.schema import accounts, points, runs

MOST_RUNS: Final = 50
MOST_VERSIONS: Final = 20
_LOOKED_AT: Final = 1000


@dataclass(frozen=True, slots=True)
class Other:
    """Another public run of the configuration. `account`: None for a local one."""

    public_id: str
    account: str | None
    same_publisher: bool
    started_us: int
    suite: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """One cell in this run and in others. `low_tok_s`, `high_tok_s`: the others' slowest and fastest. `difference`:
    this run's rate over their geometric mean. `agrees`: no difference shown (Benjamini and Hochberg over the cells);
    None where there is no interval."""

    phase: str
    context_tokens: int
    concurrency: int
    tok_s: float
    others: int
    low_tok_s: float
    high_tok_s: float
    difference: Ratio
    agrees: bool | None

    @property
    def name(self) -> str:
        context = numbers.context(self.context_tokens)
        if self.phase == "prefill":
            return f"prefill {context}"
        return ("burst " if self.phase == "burst" else "") + f"{context} × {self.concurrency}"


@dataclass(frozen=True, slots=True)
class Near:
    """Runs of the same configuration on another version of the engine, of its newest 1,000. `public_id`: the newest."""

    engine_version: str | None
    runs: int
    public_id: str


@dataclass(frozen=True, slots=True)
class Reproductions:
    """`others`: the newest MOST_RUNS; `by_others`: how many of them somebody else published. `words`: the outcome in
    a sentence; `caution`: what is not known of the configuration, so that the runs may not be alike after all."""

    others: list[Other]
    by_others: int
    agreement: list[Agreement]
    near: list[Near]
    words: str
    caution: str | None


def digest(conn: Connection, row: RunRow) -> str:
    """SHA-256 in hex of all that `reproductions` tells of: the run, and the public ones that it looks at. What a run's
    row tells never changes while it is public; one that was hidden and shown again has another `state_us`."""
    wanted = select(runs.c.id, runs.c.state_us)
    others = conn.execute(_others(wanted, row)).all() if row.repro_key else []
    near = conn.execute(of_history(wanted, row.history_key, _LOOKED_AT)).all() if row.history_key else []
    return hashlib.sha256(f"{row.content_hash} {others} {near}".encode()).hexdigest()


def reproductions(conn: Connection, row: RunRow) -> Reproductions:
    """The public runs that have the run's model, hardware, engine and version, options, prompts and sampling."""
    wanted = select(runs.c.id, runs.c.public_id, runs.c.account_id, runs.c.started_us, runs.c.suite,
                    accounts.c.name.label("account"))  # fmt: skip
    named = wanted.join_from(runs, accounts, accounts.c.id == runs.c.account_id, isouter=True)
    found = conn.execute(_others(named, row)).all() if row.repro_key else []
    others = [Other(r.public_id, r.account, r.account_id == row.account_id, r.started_us, r.suite) for r in found]
    cells = _cells(conn, [row.id, *(r.id for r in found)]) if found else {}
    agreement = agree(cells.get(row.id, {}), [cells.get(r.id, {}) for r in found])
    by_others = sum(not other.same_publisher for other in others)
    return Reproductions(
        others, by_others, agreement, _near(conn, row), words(len(others), by_others, agreement), _caution(row)
    )


def _others(wanted: Select[Any], row: RunRow) -> Select[Any]:
    """The newest of the other public runs of its configuration."""
    mine = wanted.where(runs.c.repro_key == row.repro_key, unindexed(runs.c.state) == "public", runs.c.id != row.id)
    return mine.order_by(unindexed(runs.c.started_us).desc(), runs.c.id.desc()).limit(MOST_RUNS)


Cells = Mapping[tuple[str, int, int], Any]


def _cells(conn: Connection, ids: Sequence[int]) -> dict[int, dict[tuple[str, int, int], Any]]:
    found: dict[int, dict[tuple[str, int, int], Any]] = {}
    valid = select(points).where(points.c.run_id.in_(ids), points.c.status == Status.VALID)
    for p in conn.execute(valid).all():
        found.setdefault(p.run_id, {})[p.phase, p.context_tokens, p.concurrency] = p
    return found


def agree(mine: Cells, others: Sequence[Cells]) -> list[Agreement]:
    """Each valid cell of a run that another run has, too: in the order of phases, contexts and concurrencies."""
    made: list[Agreement] = []
    for key in sorted(mine):
        this = _estimate(mine[key])
        theirs = [e for e in (_estimate(cells[key]) for cells in others if key in cells) if e is not None]
        if this is None or not theirs:
            continue
        rates = [e.value for e in theirs]
        made.append(Agreement(*key, this.value, len(theirs), min(rates), max(rates), ratio(theirs, [this]), None))
    chances = [a.difference.p for a in made if a.difference.p is not None]
    shown, _ = level_of(chances)
    return [a if a.difference.p is None else replace(a, agrees=a.difference.p > shown) for a in made]


def _estimate(point: Any) -> Estimate | None:
    return estimate(point.rate_tok_s, point.rate_low, point.rate_high)


def words(others: int, by_others: int, agreement: Sequence[Agreement]) -> str:
    """How often the configuration was measured again, by whom, and how well that agrees."""
    if not others:
        return "No other public run has this configuration: nobody has reproduced it here."
    who = f"{by_others} by other publishers" if by_others else "all by the same publisher"
    text = f"{others} other run{'s' if others != 1 else ''} of this configuration, {who}"
    if not agreement:
        return f"{text}; they have no valid cell in common with this one."
    same, apart = sum(a.agrees is True for a in agreement), [a for a in agreement if a.agrees is False]
    unknown = sum(a.agrees is None for a in agreement)
    text += f": {same} of {len(agreement)} cells agree"
    if unknown:
        text += f", {unknown} without an interval"
    furthest = max(agreement, key=lambda a: abs(a.difference.value - 1) if a.difference.value >= 1 else
                   1 / a.difference.value - 1)  # fmt: skip
    far = f"{numbers.percent(abs(furthest.difference.value - 1))} at {furthest.name}"
    return f"{text}; the largest difference is {far}" + (", shown by the intervals." if furthest in apart else ".")


def _near(conn: Connection, row: RunRow) -> list[Near]:
    if not row.history_key:
        return []
    found: dict[str | None, list[str]] = {}
    wanted = select(runs.c.engine_version, runs.c.repro_key, runs.c.public_id)
    for other in conn.execute(of_history(wanted, row.history_key, _LOOKED_AT)):
        if other.repro_key != row.repro_key:
            found.setdefault(other.engine_version, []).append(other.public_id)
    return [Near(version, len(ids), ids[0]) for version, ids in list(found.items())[:MOST_VERSIONS]]


def _caution(row: RunRow) -> str | None:
    unknown = []
    if not row.told().get("launch_known"):
        unknown.append("the launch command is not known, so the servers' options may differ")
    if not row.hardware_key:
        unknown.append("the server's hardware is not known")
    if not row.engine_version:
        unknown.append("the engine's version is not known")
    return "; ".join(unknown) or None
