"""Fills a site's database with synthetic runs: the rows that publishing them would have made, put in all at once.

Each configuration's rows come from `flatout.site.facts` of a record of it; its runs vary the numbers. A sample is
published in full, with files, by the site's own store. `check` makes some configurations' rankings anew, as publishing
does, and compares.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import sqlalchemy as sa
from tests import page_records, records

from flatout.limits import known
from flatout.record import Cell, Fact, Record
from flatout.site import boards, index, schema
from flatout.site.index import PointRow, RunFacts, run_facts
from flatout.site.intake import public_id_of, take
from flatout.site.settings import Settings
from flatout.site.store import Store

K: Final = 1024
DAYS: Final = 730
ENGINES: Final = ("vllm", "sglang", "llama.cpp", "tensorrt-llm", "lmdeploy", "mlc")
QUANTIZATIONS: Final = ("BF16", "FP8", "AWQ", "Q4_K_M", "Q8_0")
FAMILIES: Final = (
    "Qwen/Qwen3.5", "meta-llama/Llama-4", "mistralai/Ministral", "google/gemma-4", "deepseek-ai/R2-Distill",
    "microsoft/phi-5", "ibm-granite/granite-5", "allenai/OLMo-3",
)  # fmt: skip
NIGHTLY: Final = 0.25
"""Of the runs with files and of those that are published while others read."""
SIZES: Final = ("0.6B", "4B", "8B", "14B", "32B")
SHAPES: Final = (
    ((1, 8, 32, 64), (1, 4, 16, 64)),
    ((1, 8, 32, 128), (1, 8, 32, 128)),
    ((2, 16, 64, 128), (1, 2, 4, 8)),
)
"""Contexts in thousands × requests at once: 16 decode cells and 4 prefill cells each."""
_CHUNK: Final = 5000


@dataclass(frozen=True)
class Filled:
    """`samples`: public ids of runs with files, newest first."""

    runs: int
    points: int
    configurations: int
    seconds: float
    samples: list[str]


def fill(settings: Settings, made: Store, count: int, samples: int, seed: int = 1) -> Filled:
    """Puts `count` runs into an empty site, `samples` of them with their files."""
    begun = datetime.now(UTC)
    rng = random.Random(seed)
    end = begun.replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
    lines = max(1, count // 20)
    left = count - samples
    counts: Counter[tuple[str, str, str]] = Counter()
    points = configurations = 0
    ids = itertools.count(1)
    batch = _Batch(made)
    for facts in _configurations(rng, lines * 4):
        if left <= 0:
            break
        configurations += 1
        runs = [_run(rng, facts, end, next(ids)) for _ in range(min(left, rng.choice((1, 3, 5, 5, 6, 10))))]
        left -= len(runs)
        points += sum(len(run.points) for _, run in runs)
        for _, run in runs:
            counts.update(_names(run))
        batch.add(runs)
    batch.flush()
    with made.database.write() as conn:
        rows = [{"kind": k, "key": key, "label": label, "runs": n} for (k, key, label), n in _one_label(counts).items()]
        conn.execute(sa.insert(schema.names), rows)
        conn.execute(sa.insert(schema.boards), _counted(conn))
    kept = [made.publish(take(body(rng, i, end), gzipped=False, settings=settings), account_id=None, who="benchmark")
            for i in range(samples)]  # fmt: skip
    took = (datetime.now(UTC) - begun).total_seconds()
    return Filled(count, points, configurations, took, [one.public_id for one in reversed(kept)])


def _counted(conn: sa.Connection) -> list[dict[str, Any]]:
    """Rows of `boards`."""
    table = schema.standings
    counted = sa.select(table.c.board, sa.func.count().label("n")).group_by(table.c.board)
    return [
        {"board": row.board, "kind": row.board.partition(":")[0], "configurations": row.n}
        for row in conn.execute(counted)
    ]


class _Batch:
    """Rows that are put in together, with the rankings of whole configurations."""

    def __init__(self, made: Store) -> None:
        self._store = made
        self._rows: dict[sa.Table, list[dict[str, Any]]] = {
            t: [] for t in (schema.runs, schema.points, schema.standings)
        }

    def add(self, runs: Sequence[tuple[dict[str, Any], RunFacts]]) -> None:
        cells = [[{"run_id": row["id"], **asdict(point)} for point in facts.points] for row, facts in runs]
        members = [SimpleNamespace(**row) for row, _ in runs]
        members.sort(key=lambda row: (row.started_us, row.id), reverse=True)
        points = {row["id"]: facts.points for row, facts in runs}
        self._rows[schema.runs] += [row for row, _ in runs]
        self._rows[schema.points] += itertools.chain.from_iterable(cells)
        self._rows[schema.standings] += boards.standing_rows(members[0].repro_key, members, points, [None])
        if len(self._rows[schema.runs]) >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        with self._store.database.write() as conn:
            for table, rows in self._rows.items():
                if rows:
                    conn.execute(sa.insert(table), rows)
                rows.clear()
            if conn.dialect.name == "postgresql":  # the ids were given by hand
                conn.execute(sa.text("SELECT setval(pg_get_serial_sequence('runs', 'id'), (SELECT max(id) FROM runs))"))


def _configurations(rng: random.Random, count: int) -> Iterator[RunFacts]:
    """Facts of as many configurations: popular models and hardware have more of them, and each line of versions has
    four."""
    models = [f"{family}-{size}" for family in FAMILIES for size in SIZES]
    hardware = _hardware_names()
    rng.shuffle(models)
    base = {shape: _record(shape) for shape in range(len(SHAPES))}
    for line in range(count // 4):
        model, gpu = _popular(rng, models), _popular(rng, hardware)
        engine, quantization = _popular(rng, ENGINES), _popular(rng, QUANTIZATIONS)
        speculation = rng.choice(("none", "none", "none", "eagle3", "mtp"))
        shape = rng.randrange(len(SHAPES))
        speed = rng.lognormvariate(0, 0.8)
        for version in range(4):
            record = base[shape].model_copy(
                update={
                    "model": records.record([]).model.model_copy(
                        update={"id": records.fact(model), "quantization": records.fact(quantization)}
                    ),
                    "engine": records.engine(
                        name=records.fact(engine), version=records.fact(f"0.{version + 5}.{line % 7}"),
                        speculative_method=records.fact(speculation),
                        launch_command=records.fact(f"{engine} serve {model} --max-num-seqs {64 + line}"),
                    ),
                    "hardware": _hardware(base[shape], gpu),
                }
            )  # fmt: skip
            yield _scaled(run_facts(record), speed * (1 + 0.04 * version))


def _popular(rng: random.Random, things: Sequence[str]) -> str:
    return things[min(int(rng.paretovariate(0.7)) - 1, 10**6) % len(things)]


def _hardware(record: Record, gpu: str) -> Any:
    facts: dict[str, Fact] = {**record.hardware.facts, "gpu": records.fact(gpu, source="host")}
    return record.hardware.model_copy(update={"facts": facts})


def _record(shape: int, furnish: bool = False) -> Record:
    contexts, at_once = SHAPES[shape]
    cells: list[Cell] = [records.prefill(f"{k}K", k * K, 12_000.0 / (1 + k / 64), 1000 * k / 12) for k in contexts]
    for k, n in itertools.product(contexts, at_once):
        rate = 110.0 * n / (1 + 0.04 * n) / (1 + k / 256)
        cell = records.decode(f"{k}K", k * K, n, rate, ttft_ms=20.0 + n, itl_ms=1000 * n / rate, active=float(n),
                              completed=9, output=30 * rate)  # fmt: skip
        cells.append(page_records.furnished(cell) if furnish else cell)
    return records.record(cells)


def _scaled(facts: RunFacts, speed: float, spread: float = 0.004) -> RunFacts:
    def each(point: PointRow) -> PointRow:
        rate = None if point.rate_tok_s is None else point.rate_tok_s * speed
        return replace(
            point, rate_tok_s=rate, rate_low=None if rate is None else rate * (1 - spread),
            rate_high=None if rate is None else rate * (1 + spread),
            each_tok_s=None if point.each_tok_s is None else point.each_tok_s * speed,
        )  # fmt: skip

    best = {
        name: None if value is None else value * speed
        for name in ("single_tok_s", "total_tok_s", "prefill_tok_s")
        if (value := getattr(facts, name)) or True
    }
    return replace(facts, points=tuple(each(point) for point in facts.points), **best)


def _run(rng: random.Random, facts: RunFacts, end: datetime, number: int) -> tuple[dict[str, Any], RunFacts]:
    """A row of `runs` and what it was made from."""
    started = end - timedelta(seconds=rng.randrange(DAYS * 86400))
    started_us = int(started.timestamp()) * 1_000_000
    varied = replace(
        _scaled(facts, rng.lognormvariate(0, 0.01)),
        started_us=started_us,
        record_id=f"{started:%Y%m%dT%H%M%SZ}-run-{number}",
    )
    digest = hashlib.sha256(f"{number}".encode()).hexdigest()
    trust, notes = rng.choice((("good", 0), ("notes", 1), ("notes", 3), ("doubtful", 2)))
    columns = {name: value for name, value in asdict(varied).items() if name != "points"}
    row = {
        "id": number, "public_id": public_id_of(digest), "content_hash": digest, "account_id": None, "origin": None,
        "state": "public", "received_us": started_us + 10**9, "bytes": 60_000, "samples_hash": None, "trust": trust,
        "trust_notes": notes, **columns,
    }  # fmt: skip
    return row, varied


def _names(run: RunFacts) -> list[tuple[str, str, str]]:
    row = asdict(replace(run, points=()))
    return [(kind, *named(row)) for kind, named in index._KINDS.items() if named(row)[0]]


def _one_label(counts: Counter[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    made: dict[tuple[str, str], tuple[str, int]] = {}
    for (kind, key, label), n in counts.items():
        made[kind, key] = (label, n + made.get((kind, key), ("", 0))[1])
    return {(kind, key, label): n for (kind, key), (label, n) in made.items()}


def body(rng: random.Random, number: int, end: datetime) -> bytes:
    """A whole record, each number another one: every fourth of one configuration that is measured each night, the
    others of popular ones."""
    content: dict[str, Any] = json.loads(_whole())
    if rng.random() < NIGHTLY:
        content["engine"]["version"]["value"] = f"1.{number // 10}"
    else:
        engine = _popular(rng, ENGINES)
        model = f"{_popular(rng, FAMILIES)}-{rng.choice(SIZES)}"
        content["model"]["id"]["value"] = model
        content["model"]["quantization"]["value"] = _popular(rng, QUANTIZATIONS)
        content["engine"]["name"]["value"] = engine
        content["engine"]["version"]["value"] = f"0.{5 + rng.randrange(4)}.{rng.randrange(7)}"
        content["engine"]["launch_command"]["value"] = f"{engine} serve {model} --max-num-seqs {64 + rng.randrange(8)}"
        content["hardware"]["facts"]["gpu"]["value"] = _popular(rng, _hardware_names())
    started = end + timedelta(minutes=number)
    content["id"] = f"{started:%Y%m%dT%H%M%SZ}-sample-{number}-{rng.randrange(2**32):08x}"
    content["started"], content["finished"] = started.isoformat(), (started + timedelta(minutes=20)).isoformat()
    for cell in content["cells"]:
        factor = rng.lognormvariate(0, 0.01)
        for phase, name in (("prefill", "prefill_tok_s"), ("decode", "total_tok_s")):
            if cell[phase] is not None:
                rate = cell[phase][name]
                rate.update({key: rate[key] * factor for key in ("value", "low", "high") if rate[key] is not None})
    return json.dumps(content).encode()


def _hardware_names() -> list[str]:
    return [one.name for one in known()][:60]


@cache
def _whole() -> str:
    return _record(0, furnish=True).model_dump_json()


def check(made: Store, some: int = 40) -> int:
    """Makes the rankings of some configurations anew; how many rows were compared. Raises AssertionError where one is
    not as publishing makes it."""
    table = schema.standings
    with made.database.write() as conn:
        keys = list(conn.scalars(sa.select(table.c.repro_key).distinct().order_by(table.c.repro_key).limit(some)))
        asked = sa.select(table).where(table.c.repro_key.in_(keys)).order_by(table.c.repro_key, table.c.board)
        before = conn.execute(asked).all()
        for key in keys:
            boards.refresh(conn, key)
        after = conn.execute(asked).all()
        for one, two in zip(before, after, strict=True):
            for name in [column.name for column in table.c]:
                a, b = getattr(one, name), getattr(two, name)
                same = abs(a - b) <= 1e-9 * abs(a) if isinstance(a, float) and isinstance(b, float) else a == b
                assert same, (name, one, two)
    return len(before)
