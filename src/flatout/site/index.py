"""What the database holds of a run: names, keys and measured cells from its record, and the row that lists show."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from flatout import metrics
from flatout.compare import launch_options
from flatout.flags import MEASURED, Status
from flatout.record import Cell, Fact, Record
from flatout.show import about
from flatout.show.safe import clean
from flatout.site.database import upsert
from flatout.site.errors import Refused
from flatout.site.schema import accounts, names, runs

NOT_KNOWN: Final = "not known"
"""Precision and speculation where the server does not tell."""
UNKNOWN_PART: Final = "unknown"
"""What stands in a configuration's key where the launch command or the hardware is not known."""
_MEDIANS: Final = tuple(metrics.BY_NAME[key] for key in ("per_request_tok_s", "ttft_ms", "itl_ms"))
SOUND: Final = frozenset({Status.VALID, Status.REQUESTS_QUEUED})
_LARGEST: Final = 2**31 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AHEAD: Final = timedelta(days=1)
_TYPED: Final = " (as typed)"
_NOT_IN_KEYS: Final = re.compile(r"[^a-z0-9._+]+")
_TYPES: Final = {"bfloat16": "BF16", "float16": "FP16", "half": "FP16", "float32": "FP32", "float": "FP32"}
_SHORT: Final = 8


@dataclass(frozen=True, slots=True)
class PointRow:
    """One measured cell, as a row of `points` without the run. A rate and its interval are above 0 or None."""

    phase: str
    context_tokens: int
    concurrency: int
    status: str
    sound: bool
    rate_tok_s: float | None
    rate_low: float | None
    rate_high: float | None
    each_tok_s: float | None
    ttft_ms: float | None
    itl_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _FromRecord:
    """The columns of `runs` that come from the record, by their names there.

    `model_key`, `hardware_key`, `engine_key` stand in URLs; they are empty where the thing is not known.
    `repro_key` is equal for runs of one configuration, `history_key` for those on any version of its engine.
    """

    record_id: str
    started_us: int
    model_key: str
    model: str
    hardware_key: str
    hardware: str
    engine_key: str
    engine: str
    engine_version: str | None
    precision: str
    speculation: str
    repro_key: str
    history_key: str
    suite: str
    run_state: str
    cells: int
    cells_measured: int
    cells_sound: int
    context_max: int | None
    single_tok_s: float | None
    total_tok_s: float | None
    prefill_tok_s: float | None
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(_FromRecord):
    """What the database holds of a record."""

    points: tuple[PointRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow(_FromRecord):
    """A row of `runs`, by the names there, with the account's name (None: local)."""

    id: int
    public_id: str
    content_hash: str
    account_id: int | None
    origin: str | None
    state: str
    state_reason: str | None
    state_us: int | None
    successor_id: int | None
    replaces_id: int | None
    received_us: int
    bytes: int
    samples_hash: str | None
    trust: str
    trust_notes: int
    account: str | None

    def told(self) -> dict[str, Any]:
        """What `run_facts` wrote into `summary`; empty for a deleted run."""
        return dict(json.loads(self.summary))


@dataclass(frozen=True, slots=True)
class Published:
    """`created`: False where the site had the record already."""

    public_id: str
    state: str
    created: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """A run that has just come into a state. `repro_key`: the configuration whose ranking that may change."""

    public_id: str
    content_hash: str
    state: str
    repro_key: str


def run_facts(record: Record) -> RunFacts:
    """Raises Refused for what a run cannot have: no time of day, contexts and concurrencies beyond 31 bits."""
    points = _points(record)
    hardware = about.hardware_name(record)
    known = hardware.removesuffix(_TYPED) != "hardware not known"
    engine = about.known(record.engine.name)
    version = about.known(record.engine.version)
    repro, history = _keys(record, key_of(hardware.removesuffix(_TYPED)) if known else "")
    sound = [point for point in points if point.sound]
    return RunFacts(
        record_id=clean(record.id, 200),
        started_us=_started_us(record),
        model_key=key_of(_model(record)),
        model=clean(about.model_name(record), 200),
        hardware_key=key_of(hardware.removesuffix(_TYPED)) if known else "",
        hardware=clean(hardware, 200),
        engine_key=key_of(engine or "", 60),
        engine=clean(engine or "engine not known", 100),
        engine_version=clean(version, 100) if version else None,
        precision=_precision(record),
        speculation=_speculation(record),
        repro_key=repro,
        history_key=history,
        suite=clean(record.plan.suite, 100),
        run_state=record.state,
        cells=len(record.cells),
        cells_measured=sum(map(about.measured, record.cells)),
        cells_sound=sum(cell.status in SOUND for cell in record.cells),
        context_max=max((point.context_tokens for point in points), default=None),
        single_tok_s=_best(p for p in sound if p.phase == "decode" and p.concurrency == 1),
        total_tok_s=_best(p for p in sound if p.phase == "decode" and p.concurrency > 1),
        prefill_tok_s=_best(p for p in sound if p.phase == "prefill"),
        summary=_summary(record),
        points=points,
    )


def key_of(name: str, limit: int = 120) -> str:
    """A name as it stands in a URL: small letters, digits and `._+-`. A name that would lose too much by it (other
    scripts, too long) ends in its hash, so that different names stay different. Empty for an empty name."""
    low = name.strip().lower()
    key = _NOT_IN_KEYS.sub("-", low).strip("-.")
    lost = sum(not char.isascii() for char in low)
    if not low:
        return ""
    if lost or len(key) > limit or not key:
        digest = hashlib.sha256(low.encode("utf-8", "replace")).hexdigest()[:10]
        key = f"{key[: limit - 11].strip('-.')}-{digest}".lstrip("-")
    return key


def hardware_label(hardware: str) -> str:
    """The hardware's name without the words that say where a run's facts came from: for names that runs share."""
    return hardware.removesuffix(_TYPED)


def _model(record: Record) -> str:
    return about.known(record.model.id) or about.known(record.model.served_as) or ""


def _precision(record: Record) -> str:
    """Short names in capitals, types of torch by their usual names: `BF16`, `Q4_K_M`, `FP8`."""
    told = about.precision(record)
    if told is None:
        return NOT_KNOWN
    short = _TYPES.get(told.lower().removeprefix("torch."), told)
    return clean(short.upper() if len(short) <= _SHORT else short, 40)


def _speculation(record: Record) -> str:
    told = about.known(record.engine.speculative_method)
    return clean(told.lower(), 60) if told else NOT_KNOWN


def _started_us(record: Record) -> int:
    try:
        started = datetime.fromisoformat(record.started)
        started = started.replace(tzinfo=UTC) if started.tzinfo is None else started.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Refused("started", "this is no time of day as ISO 8601 writes it") from error
    if started < _EPOCH:
        raise Refused("started", "the run began before 1970: the machine's clock was not set")
    if started > datetime.now(UTC) + _AHEAD:
        raise Refused("started", "the run began in the future: the machine's clock was not set")
    return (started - _EPOCH) // timedelta(microseconds=1)


def _keys(record: Record, hardware_key: str) -> tuple[str, str]:
    """(repro_key, history_key): SHA-256 of what makes a configuration. What the prompts share and what is asked of the
    sampler is part of it, too: other work is no repeat."""
    engine, model = record.engine, record.model
    command = about.known(engine.launch_command)
    history: dict[str, Any] = {
        "model": [_model(record), _fact(model.quantization), _fact(model.dtype)],
        "speculation": [_fact(engine.speculative_method), _fact(engine.draft_model), _fact(engine.draft_length)],
        "hardware": hardware_key or UNKNOWN_PART,
        "engine": _fact(engine.name),
        "launch": launch_options(str(engine.launch_command.value)) if command else UNKNOWN_PART,
        "prompts": record.prompts.mode,
        "sampling": record.protocol.sampling,
    }
    repro, over_versions = (
        hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        for content in ({**history, "version": _fact(engine.version)}, history)
    )
    return repro, over_versions


def _fact(fact: Fact) -> str | None:
    return None if fact.value in (None, "") else str(fact.value)


def _points(record: Record) -> tuple[PointRow, ...]:
    """One for each operating point: where two contexts have the same length (`64K` and `max`), the sounder cell."""
    made: dict[tuple[str, int, int], PointRow] = {}
    for number, cell in enumerate(record.cells):
        for name, value in (("context_tokens", cell.context_tokens), ("concurrency", cell.concurrency)):
            if value is not None and not 0 <= value <= _LARGEST:
                raise Refused(f"cells.{number}.{name}", f"it must be a number from 0 to {_LARGEST:,}")
        point = _point(cell)
        if point is not None:
            key = (point.phase, point.context_tokens, point.concurrency)
            if key not in made or (point.sound and not made[key].sound):
                made[key] = point
    return tuple(made.values())


def _point(cell: Cell) -> PointRow | None:
    metric = metrics.SPEED.get(cell.phase) if cell.phase in metrics.PHASES else None
    if cell.status not in MEASURED or cell.context_tokens is None or metric is None:
        return None
    speed = metrics.read(cell, metric)
    if speed.holder is None:  # a cell without the figures of its phase
        return None
    rate, low, high = _above(speed.number), _above(speed.low), _above(speed.high)
    if rate is None or low is None or high is None or not low <= rate <= high:
        low = high = None  # no interval that does not hold the value
    each, ttft, itl = (_above(metrics.read(cell, one).number) for one in _MEDIANS)
    return PointRow(
        cell.phase, cell.context_tokens, cell.concurrency, cell.status, cell.status in SOUND, rate, low, high, each,
        ttft, itl,
    )  # fmt: skip


def _above(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) and value > 0 else None


def _best(points: Iterable[PointRow]) -> float | None:
    return max((p.rate_tok_s for p in points if p.rate_tok_s is not None), default=None)


def _summary(record: Record) -> str:
    """JSON of what a list shows of a run besides the columns; counts by status and flag, most frequent first."""
    statuses = Counter(clean(cell.status, 40) for cell in record.cells)
    flags = Counter(clean(flag.name, 40) for cell in record.cells for flag in cell.flags)
    told = {
        "verdict": about.verdict(record),
        "statuses": dict(statuses.most_common(20)),
        "flags": dict(flags.most_common(20)),
        "contexts": list(dict.fromkeys(about.context(cell) for cell in record.cells))[:40],
        "concurrency": sorted({cell.concurrency for cell in record.cells})[:40],
        "hardware_describes": record.hardware.describes,
        "launch_known": about.known(record.engine.launch_command) is not None,
        "prompts": clean(record.prompts.mode, 40),
        "started": clean(record.started, 40),
        "flatout": clean(record.client.flatout, 40),
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def run_rows() -> sa.Select[Any]:
    """Rows for `run_row`."""
    return sa.select(runs, accounts.c.name.label("account")).join_from(
        runs, accounts, accounts.c.id == runs.c.account_id, isouter=True
    )


def run_row(row: Any) -> RunRow:
    """From a row of `run_rows`."""
    held = row._mapping
    return RunRow(**{name: held[name] for name in _FIELDS})


_FIELDS: Final = tuple(field.name for field in fields(RunRow))


def of_history(wanted: sa.Select[Any], history_key: str, limit: int) -> sa.Select[Any]:
    """Columns of `runs`, of the newest public runs of a configuration over all versions of its engine."""
    mine = wanted.where(runs.c.history_key == history_key, runs.c.state == "public")
    return mine.order_by(runs.c.started_us.desc(), runs.c.id.desc()).limit(limit)


_KINDS: Final[dict[str, Callable[[Any], tuple[str, str]]]] = {
    "model": lambda run: (run["model_key"], run["model"]),
    "hardware": lambda run: (run["hardware_key"], hardware_label(run["hardware"])),
    "engine": lambda run: (run["engine_key"], run["engine"]),
    "precision": lambda run: (run["precision"], run["precision"]),
    "speculation": lambda run: (run["speculation"], run["speculation"]),
}
_STAMP_BITS: Final = 62


def count(conn: Connection, run: Any, change: int) -> None:
    """One public run more or less under each of its names; one that is not known has none."""
    found = [(kind, *named(run)) for kind, named in _KINDS.items()]
    stamp = _stamp()
    rows = [
        {"kind": kind, "key": key, "label": label, "runs": change, "stamp": stamp} for kind, key, label in found if key
    ]
    if not rows:
        return
    row = upsert(conn, names)
    more = {"runs": names.c.runs + row.excluded.runs, "stamp": row.excluded.stamp}
    latest = {"label": row.excluded.label} if change > 0 else {}
    conn.execute(row.on_conflict_do_update(index_elements=[names.c.kind, names.c.key], set_=more | latest), rows)
    if change < 0:
        conn.execute(sa.delete(names).where(names.c.runs <= 0))


def touch(conn: Connection, repro_key: str) -> None:
    """What is shown of a configuration's names has changed, though no run came or went."""
    stamp = _stamp()
    for kind in ("model", "hardware", "engine"):
        mine = sa.select(runs.c[f"{kind}_key"]).where(runs.c.repro_key == repro_key)
        conn.execute(sa.update(names).where(names.c.kind == kind, names.c.key.in_(mine)).values(stamp=stamp))


def _stamp() -> int:
    """By chance: a name whose last run went and that came again has none of its earlier ones, as a counter would."""
    return secrets.randbits(_STAMP_BITS)
