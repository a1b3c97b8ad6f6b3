"""A whole site in one file, and back: from SQLite to PostgreSQL, too.

The archive is a tar without compression. In it, in this order:
`backup.json`: format, flatout's version, when it was made, the tables' version, and rows and SHA-256 by table;
`tables/<name>.jsonl.gz`: a JSON object a row, keys as the columns are named;
`files/<kind>/<SHA-256 of the content>`: as they lie in the store (records gzip-compressed).
What signs cookies (the secret) is not in it. Tokens are, as hashes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import StatementError

from flatout import __version__
from flatout.show.safe import clean
from flatout.site import restored
from flatout.site.blobs import RECORDS, SAMPLES, Blobs
from flatout.site.database import Database
from flatout.site.errors import NotFound, SiteError, Unavailable

if TYPE_CHECKING:
    from flatout.site.settings import Settings

FORMAT: Final = "flatout-site-backup/1"
_MANIFEST: Final = "backup.json"
_FILE: Final = re.compile(rf"files/({RECORDS}|{SAMPLES})/([0-9a-f]{{64}})")
_MOST_MANIFEST_BYTES: Final = 1_000_000
_MOST_ROW_BYTES: Final = 1_000_000
_BATCH: Final = 500
_LIMITS: Final = {RECORDS: "the setting max_record_mb", SAMPLES: "the setting max_samples_mb"}
_ZIP_TIMES: Final = 2
"""A zip of samples may be larger than what is sent: of many small files most is their names."""
_OURS_ALONE: Final = "alembic_version"
_BROKEN: Final = (
    tarfile.TarError, EOFError, ValueError, KeyError, OverflowError, RecursionError,
    zlib.error,
)  # fmt: skip
"""What reading an archive may raise that somebody made up."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a backup holds, or a restore put back."""

    runs: int
    files: int


def backup(settings: Settings, out: Path) -> Counted:
    """Writes the archive beside `out` and renames it: whole or not at all. The site may run meanwhile.

    Raises SiteError if the file is there already, the site has no tables, or a file of a run is missing or damaged;
    Unavailable; OSError for `out`.
    """
    if out.exists():
        raise SiteError(f"{out} is there already; a backup overwrites nothing: give another name")
    database, blobs = Database.open(settings.database_url), Blobs.open(settings.files_url)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        version = database.version()
        if version is None:
            raise SiteError("there is no site to back up: the database has no tables")
        part.touch(mode=0o600)  # it holds names and the hashes of tokens
        with part.open("r+b") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                counted = _backup(archive, database, blobs, version)
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
        database.close()
    return counted


def restore(settings: Settings, source: Path) -> Counted:
    """Fills an empty site from an archive: files first, then every row in one transaction.

    Raises SiteError if the site is not empty or the archive is none, newer than this flatout, damaged (each hash is
    compared), or holds what no site can: then the database is as it was, and no file of it stays. Unavailable; OSError
    for `source`.
    """
    database, blobs = Database.open(settings.database_url), Blobs.open(settings.files_url)
    added: list[tuple[str, str]] = []
    done = False
    try:
        with tarfile.open(source, mode="r:") as archive:
            manifest = _manifest(archive)
            if database.version() is not None:
                database.migrate()
                _must_be_empty(database)
            database.migrate(manifest["revision"])
            files = _put_files(archive, blobs, settings, added)
            with database.write() as conn:
                runs = _put_tables(archive, conn, manifest["tables"], files)
        done = True
        database.migrate()
    except StatementError as error:
        raise SiteError(f"{source} is damaged: its rows do not fit together; nothing was restored") from error
    except _BROKEN as error:
        raise SiteError(f"{source} is no backup of a site, or it is cut off; nothing was restored") from error
    finally:
        if not done:
            for kind, name in added:
                with suppress(SiteError):  # what is left over is swept when the site starts
                    blobs.delete(kind, name)
        database.close()
    return Counted(runs, len(files))


# --- out ------------------------------------------------------------------------------------------------------------


def _backup(archive: tarfile.TarFile, database: Database, blobs: Blobs, version: str) -> Counted:
    spooled: dict[str, IO[bytes]] = {}
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        with database.snapshot() as conn:
            for table in _tables(conn):
                spooled[table.name] = stack.enter_context(tempfile.TemporaryFile())
                told[table.name] = _dump(conn, table, spooled[table.name])
            needed = list(_needed(conn))
        manifest = {
            "format": FORMAT,
            "flatout": __version__,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "revision": version,
            "tables": told,
        }
        text = json.dumps(manifest, indent=1).encode()
        _add(archive, _MANIFEST, io.BytesIO(text), len(text))
        for name, file in spooled.items():
            size = file.tell()
            file.seek(0)
            _add(archive, f"tables/{name}.jsonl.gz", file, size)
    for kind, name in needed:
        _add_file(archive, blobs, kind, name)
    return Counted(told["runs"]["rows"], len(needed))


def _tables(conn: Connection) -> list[sa.Table]:
    """As they are in this database, those first that others point to."""
    found = sa.MetaData()
    found.reflect(bind=conn)
    return [table for table in found.sorted_tables if table.name != _OURS_ALONE]


def _dump(conn: Connection, table: sa.Table, file: IO[bytes]) -> dict[str, Any]:
    digest = hashlib.sha256()
    rows = 0
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
        asked = sa.select(table).order_by(*table.primary_key.columns)
        for row in conn.execute(asked, execution_options={"yield_per": _BATCH}):
            line = json.dumps(dict(row._mapping), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            packed.write(line)
            digest.update(line)
            rows += 1
    return {"rows": rows, "sha256": digest.hexdigest()}


def _needed(conn: Connection) -> Iterator[tuple[str, str]]:
    """(kind, hash) of the files of runs, each once."""
    asked = sa.text("SELECT DISTINCT {0} FROM runs WHERE state != 'deleted' AND {0} IS NOT NULL ORDER BY {0}")
    for kind, column in ((RECORDS, "content_hash"), (SAMPLES, "samples_hash")):
        for name in conn.scalars(sa.text(asked.text.format(column))):
            yield kind, str(name)


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    archive.addfile(info, file)


def _add_file(archive: tarfile.TarFile, blobs: Blobs, kind: str, name: str) -> None:
    try:
        packed = blobs.raw(kind, name)
        blobs.unpacked(kind, name, packed)
    except NotFound as error:
        raise SiteError(
            f"the file {kind}/{name[:12]}… of a run is not there: it was deleted just now (then back up again), or lost"
        ) from error
    _add(archive, f"files/{kind}/{name}", io.BytesIO(packed), len(packed))


# --- in -------------------------------------------------------------------------------------------------------------


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    first = archive.next()
    content: Any = None
    if first is not None and first.name == _MANIFEST and first.isreg() and first.size <= _MOST_MANIFEST_BYTES:
        file = archive.extractfile(first)
        try:
            content = restored.parsed(file.read()) if file is not None else None
        except ValueError:
            content = None
    if not isinstance(content, dict) or not isinstance(content.get("tables"), dict):
        raise SiteError("the file is no backup of a site: it does not begin with backup.json")
    if content.get("format") != FORMAT:
        raise SiteError(f"the backup's format is {clean(content.get('format'), 40)!r}; this flatout reads {FORMAT!r}")
    fault = restored.manifest_fault(content)
    if fault is not None:
        raise SiteError(f"the backup is damaged: {fault}; nothing was restored")
    return content


def _must_be_empty(database: Database) -> None:
    with database.read() as conn:
        for table in _tables(conn):
            if conn.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
                raise SiteError(
                    f"this site is not empty (there are {table.name}): a backup is restored into a new one. "
                    "Give another --data or --database"
                )


def _put_files(
    archive: tarfile.TarFile, blobs: Blobs, settings: Settings, added: list[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Every file of the archive, its hash compared, into the store; they are needed by no run yet. `added`: gets those
    that were not there before."""
    found: set[tuple[str, str]] = set()
    most = {RECORDS: settings.max_record_bytes, SAMPLES: _ZIP_TIMES * settings.max_samples_bytes}
    for member in archive:
        match = _FILE.fullmatch(member.name)
        if not match or not member.isreg():
            continue
        kind, name = match[1], match[2]
        if member.size > most[kind]:
            raise SiteError(
                f"the file {member.name[:40]}… of the backup has {member.size:,} bytes, and this site takes at most "
                f"{most[kind]:,}: raise {_LIMITS[kind]} and restore again. Nothing was restored"
            )
        file = archive.extractfile(member)
        if file is None:
            continue
        try:
            data = blobs.unpacked(kind, name, file.read(member.size), most[kind])
        except Unavailable as error:
            raise SiteError(
                f"the backup is damaged at {member.name[:40]}…, or that file is larger unpacked than this site takes "
                f"(at most {most[kind]:,} bytes; {_LIMITS[kind]} is the limit): nothing was restored"
            ) from error
        if not blobs.has(kind, name):
            added.append((kind, name))
        blobs.put(kind, data)
        found.add((kind, name))
    return found


def _put_tables(
    archive: tarfile.TarFile, conn: Connection, told: Mapping[str, Any], files: set[tuple[str, str]]
) -> int:
    """All rows; returns how many runs. Raises SiteError, and then the caller's transaction is taken back."""
    tables = _tables(conn)
    if {table.name for table in tables} != set(told):
        raise SiteError("the backup is damaged: its tables are not those of its version; nothing was restored")
    for table in tables:
        _load(archive, conn, table, told[table.name])
    for kind, name in _needed(conn):
        if (kind, name) not in files:
            raise SiteError(f"the backup is damaged: the file {kind}/{name[:12]}… is missing; nothing was restored")
    return int(conn.scalar(sa.text("SELECT count(*) FROM runs")) or 0)


def _load(archive: tarfile.TarFile, conn: Connection, table: sa.Table, told: Mapping[str, Any]) -> None:
    own = [key.parent.name for key in table.foreign_keys if key.column.table is table]
    wait: list[dict[str, Any]] = []
    batch: list[dict[str, Any]] = []
    for row in _rows(archive, table, told):
        if any(row[name] is not None for name in own):
            # a row may point to one that comes later
            wait.append({"row_id": row["id"], **{f"new_{name}": row[name] for name in own}})
            row = {**row, **dict.fromkeys(own)}
        batch.append(row)
        if len(batch) == _BATCH:
            conn.execute(sa.insert(table), batch)
            batch = []
    if batch:
        conn.execute(sa.insert(table), batch)
    if wait:
        later = sa.update(table).where(table.c.id == sa.bindparam("row_id"))
        conn.execute(later.values({name: sa.bindparam(f"new_{name}") for name in own}), wait)
    if conn.dialect.name == "postgresql" and "id" in table.c:
        highest = conn.scalar(sa.select(sa.func.max(table.c.id)))
        if highest is not None:
            conn.execute(
                sa.text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :highest)"),
                {"name": table.name, "highest": highest},
            )


def _rows(archive: tarfile.TarFile, table: sa.Table, told: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a table, each of the types that its columns have, counted and hashed against what the manifest
    tells."""
    broken = SiteError(f"the backup is damaged: the table {table.name} is not as it was written; nothing was restored")
    columns = {column.name for column in table.columns}
    digest = hashlib.sha256()
    count = 0
    try:
        member = archive.getmember(f"tables/{table.name}.jsonl.gz")
        file = archive.extractfile(member) if member.isreg() else None
        if file is None:
            raise broken
        with gzip.GzipFile(fileobj=file, mode="rb") as lines:
            while line := lines.readline(_MOST_ROW_BYTES):
                digest.update(line)
                row = restored.parsed(line)
                count += 1
                if not isinstance(row, dict) or row.keys() != columns or count > told["rows"]:
                    raise broken
                fault = restored.row_fault(table, row)
                if fault is not None:
                    raise SiteError(
                        f"the backup is damaged: row {count:,} of {table.name} has a {fault} that cannot be; nothing "
                        "was restored"
                    )
                yield row
    except (KeyError, EOFError, ValueError, OSError, zlib.error) as error:
        raise broken from error
    if told["rows"] != count or told["sha256"] != digest.hexdigest():
        raise broken
