"""What must hold in the site's database at any moment, counted anew from the runs alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from flatout.record import parse
from flatout.site import boards
from flatout.site.blobs import RECORDS, SAMPLES
from flatout.site.index import hardware_label, run_facts
from flatout.site.schema import boards as counted_boards
from flatout.site.schema import names, points, runs
from flatout.site.schema import standings as ranked
from flatout.site.store import DELETED, PUBLIC, Store


def nothing_half(store: Store) -> int:
    """Every run with its file, its points, its places in rankings and counts; returns how many runs there are."""
    with store.database.read() as conn:
        rows = conn.execute(sa.select(runs)).all()
        held = Counter(conn.scalars(sa.select(points.c.run_id)))
    for row in rows:
        if row.state == DELETED:
            assert not held[row.id] and not store.blobs.has(RECORDS, row.content_hash)
            continue
        record = parse(store.blobs.get(RECORDS, row.content_hash))  # `get` compares the hash
        facts = run_facts(record)
        assert held[row.id] == len(facts.points) > 0
        for name, value in asdict(facts).items():
            assert name == "points" or getattr(row, name) == value, name
        if row.samples_hash:
            store.blobs.get(SAMPLES, row.samples_hash)
    _counts(store, [row for row in rows if row.state == PUBLIC])
    _rankings(store, {row.repro_key for row in rows if row.state != DELETED})
    return len(rows)


def _counts(store: Store, public: list[Any]) -> None:
    wanted: Counter[tuple[str, str]] = Counter()
    for row in public:
        wanted.update(
            {
                ("model", row.model_key), ("hardware", row.hardware_key), ("engine", row.engine_key),
                ("precision", row.precision), ("speculation", row.speculation),
            }
        )  # fmt: skip
    labels = {("hardware", row.hardware_key): hardware_label(row.hardware) for row in public}
    with store.database.read() as conn:
        found = conn.execute(sa.select(names)).all()
    assert {(row.kind, row.key): row.runs for row in found} == {k: n for k, n in wanted.items() if k[1]}
    for row in found:
        assert row.label and labels.get((row.kind, row.key), row.label) == row.label


def _rankings(store: Store, keys: set[str]) -> None:
    """As they are made anew."""
    ask = sa.select(ranked).order_by(ranked.c.board, ranked.c.repro_key)
    with store.database.write() as conn:
        store.database.one_at_a_time(conn)
        before = [tuple(row) for row in conn.execute(ask)]
        counted = {row.board: row.configurations for row in conn.execute(sa.select(counted_boards))}
        assert counted == Counter(row[0] for row in before)
        for key in sorted(keys):
            boards.refresh(conn, key)
        assert [tuple(row) for row in conn.execute(ask)] == before
