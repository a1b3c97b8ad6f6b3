"""Synthetic runs for the tests of the site, each another one, cheap to make: one record is made, the others differ."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from flatout.record import dump
from flatout.site.blobs import Blobs
from flatout.site.database import Database
from flatout.site.intake import Taken, take
from flatout.site.settings import Settings
from flatout.site.store import Store
from tests import records

K = 1024
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def settings(folder: Path, **more: Any) -> Settings:
    """Of a site below `folder`, on SQLite unless told otherwise."""
    parts: dict[str, Any] = {
        "data_dir": folder,
        "database_url": f"sqlite:///{folder / 'site.sqlite3'}",
        "files_url": str(folder / "files"),
        "secret": "a secret of the tests, 0123456789abcdef",
    }
    return Settings(**{**parts, **more})


def store(database: Database, folder: Path, **more: Any) -> Store:
    """A store on that database, with its files below `folder`."""
    made = settings(folder, database_url=database.engine.url.render_as_string(hide_password=False), **more)
    return Store(database, Blobs.open(made.files_url), made)


@lru_cache(maxsize=1)
def _base() -> str:
    cells = [records.prefill(f"{k}K", k * K, 9_000.0 - 20 * k, k * 120.0) for k in (1, 8, 32)]
    for k in (1, 8, 32):
        for n in (1, 4, 16):
            rate = 100.0 * n / (1 + 0.1 * n) - k / 4
            cells.append(
                records.decode(
                    f"{k}K", k * K, n, rate, ttft_ms=9.0 + n, itl_ms=1000 * n / rate, active=float(n), completed=8 + n,
                    output=30.0 * rate,
                )
            )  # fmt: skip
    return dump(records.record(cells))


def content(
    number: int = 0,
    *,
    speed: float = 1.0,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    version: str | None = None,
    command: str | None = None,
    speculation: str | None = None,
    quantization: str | None = None,
    started: datetime | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The JSON of a run: three contexts, one to sixteen requests, all valid. `number` makes it another one, begun so
    many hours after 1 November 2026; `speed` multiplies its rates; `more` replaces keys of the record."""
    made: dict[str, Any] = json.loads(_base())
    began = started or BEGIN + timedelta(hours=number % 720)
    made["id"] = f"{began:%Y%m%dT%H%M%SZ}-run-{number}"
    made["started"] = began.isoformat(timespec="milliseconds")
    made["finished"] = (began + timedelta(minutes=14)).isoformat(timespec="milliseconds")
    made["prompts"]["run_nonce"] = f"{number:08x}"
    for place, name, value in (
        ("model", "id", model),
        ("model", "quantization", quantization),
        ("engine", "name", engine),
        ("engine", "version", version),
        ("engine", "launch_command", command),
        ("engine", "speculative_method", speculation),
    ):
        if value is not None:
            made[place][name]["value"] = value
    if gpu is not None:
        made["hardware"]["facts"]["gpu"]["value"] = gpu
    if speed != 1.0:
        for cell in made["cells"]:
            faster(cell, speed)
    made.update(copy.deepcopy(more))
    return made


def faster(cell: dict[str, Any], speed: float) -> None:
    """The same cell with its rates multiplied."""
    for phase, name in (("prefill", "prefill_tok_s"), ("decode", "total_tok_s"), ("burst", "end_to_end_tok_s")):
        if cell[phase] is not None:
            rate = cell[phase][name]
            for key in ("value", "low", "high"):
                rate[key] = None if rate[key] is None else rate[key] * speed
    if cell["decode"] is not None:
        each = cell["decode"]["per_request_tok_s"]
        each.update({key: each[key] * speed for key in ("p50", "p90", "mean", "max")})


def body(number: int = 0, **more: Any) -> bytes:
    return json.dumps(content(number, **more)).encode()


def taken(settings: Settings, number: int = 0, **more: Any) -> Taken:
    return take(body(number, **more), gzipped=False, settings=settings)
