"""How many public runs there are under each name: what lists filter by; and the stamp that tells a name's page from an
older one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from flatout.site.facts import hardware_label
from flatout.site.schema import names, runs
from flatout.site.sql import upsert

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
