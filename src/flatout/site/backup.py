"""A whole site in one file, and back: from SQLite to PostgreSQL, too.

A backup holds what nothing else tells: the records and samples as they lie in the store, and the small tables beside
them. A restore reads each record again as intake does, so that lists, counts and rankings are made anew.

The archive is a tar without compression. In it, in this order:
`backup.json`: format, flatout's version, when it was made, and rows and SHA-256 by table;
`tables/<name>.jsonl.gz`: a JSON object a row, keys as the columns are named (of runs those that no record tells);
`files/<kind>/<SHA-256 of the content>`: as they lie in the store (records gzip-compressed).
What signs cookies (the secret) is not in it. Tokens are, as hashes. Archives of `flatout-site-backup/1` hold every
table whole; of them the same is read.
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
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import StatementError

from flatout import __version__
from flatout.show.safe import clean
from flatout.site import boards, store
from flatout.site.accounts import NAME_PATTERN
from flatout.site.blobs import RECORDS, SAMPLES, Blobs
from flatout.site.database import Database
from flatout.site.errors import NotFound, Refused, SiteError, Unavailable
from flatout.site.intake import public_id_of, take_again
from flatout.site.schema import accounts, deeds, metadata, reports, runs, takes, tokens

if TYPE_CHECKING:
    from flatout.site.settings import Settings

FORMAT: Final = "flatout-site-backup/2"
_READ: Final = (FORMAT, "flatout-site-backup/1")
_TABLES: Final[Mapping[sa.Table, Sequence[str]]] = {
    accounts: accounts.c.keys(),
    tokens: tokens.c.keys(),
    runs: ("id", "content_hash", "account_id", "origin", "state", "state_reason", "state_us", "successor_id",
           "replaces_id", "received_us", "started_us", "run_state", "samples_hash"),
    reports: reports.c.keys(),
    deeds: deeds.c.keys(),
    takes: takes.c.keys(),
}  # fmt: skip
"""Tables and their columns, those first that others point to."""
_MANIFEST: Final = "backup.json"
_FILE: Final = re.compile(rf"files/({RECORDS}|{SAMPLES})/([0-9a-f]{{64}})")
_RULES: Final = {
    "accounts": {"name": re.compile(NAME_PATTERN)},
    "runs": {
        "content_hash": re.compile(r"[0-9a-f]{64}"),
        "state": re.compile("public|queued|hidden|withdrawn|deleted"),
    },
}
"""What texts of a table must be, by column."""
_MOST_MANIFEST_BYTES: Final = 1_000_000
_MOST_ROW_BYTES: Final = 1_000_000
_BATCH: Final = 500  # rows
_LIMITS: Final = {RECORDS: "the setting max_record_mb", SAMPLES: "the setting max_samples_mb"}
_ZIP_TIMES: Final = 2
"""A zip of samples may be larger than what is sent: of many small files most is their names."""
_BROKEN: Final = (tarfile.TarError, EOFError, ValueError, KeyError, OverflowError, RecursionError, zlib.error)
"""What reading an archive may raise that somebody made up."""
_Files = dict[tuple[str | Any, str | Any], tarfile.TarInfo]


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
        if database.version() is None:
            raise SiteError("there is no site to back up: the database has no tables")
        part.touch(mode=0o600)  # it holds names and the hashes of tokens
        with part.open("r+b") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                counted = _backup(archive, database, blobs)
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
            told = _manifest(archive)
            database.migrate()
            _must_be_empty(database)
            files = _put_files(archive, blobs, settings, added)
            with database.write() as conn:
                database.one_at_a_time(conn)
                for table in _TABLES:
                    _put_table(archive, conn, table, told[table.name], files)
                for key in list(
                    conn.scalars(sa.select(runs.c.repro_key).where(runs.c.state == store.PUBLIC).distinct())
                ):
                    boards.refresh(conn, key)
        done = True
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
    return Counted(told["runs"]["rows"], len(files))


# --- out ------------------------------------------------------------------------------------------------------------


def _backup(archive: tarfile.TarFile, database: Database, blobs: Blobs) -> Counted:
    spooled: dict[str, IO[bytes]] = {}
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        with database.snapshot() as conn:
            for table, names in _TABLES.items():
                spooled[table.name] = stack.enter_context(tempfile.TemporaryFile())
                told[table.name] = _dump(conn, table, names, spooled[table.name])
            needed = sorted(store.needed_files(conn))
        made = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({"format": FORMAT, "flatout": __version__, "made": made, "tables": told}, indent=1).encode()
        _add(archive, _MANIFEST, io.BytesIO(text), len(text))
        for name, file in spooled.items():
            size = file.tell()
            file.seek(0)
            _add(archive, f"tables/{name}.jsonl.gz", file, size)
    for kind, name in needed:
        try:
            packed = blobs.raw(kind, name)
            blobs.unpacked(kind, name, packed)
        except NotFound as error:
            raise SiteError(
                f"the file {kind}/{name[:12]}… of a run is not there: it was deleted just now (then back up again), or "
                "lost"
            ) from error
        _add(archive, f"files/{kind}/{name}", io.BytesIO(packed), len(packed))
    return Counted(told["runs"]["rows"], len(needed))


def _dump(conn: Connection, table: sa.Table, names: Sequence[str], file: IO[bytes]) -> dict[str, Any]:
    """The rows of a table, which an earlier flatout may have made: it can lack columns."""
    there = {column["name"] for column in sa.inspect(conn).get_columns(table.name)}
    asked = sa.select(*(table.c[name] for name in names if name in there)).order_by(*table.primary_key.columns)
    digest = hashlib.sha256()
    rows = 0
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
        for row in conn.execute(asked, execution_options={"yield_per": _BATCH}):
            line = json.dumps(dict(row._mapping), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            packed.write(line)
            digest.update(line)
            rows += 1
    return {"rows": rows, "sha256": digest.hexdigest()}


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    archive.addfile(info, file)


# --- in -------------------------------------------------------------------------------------------------------------


def _damaged(what: str) -> SiteError:
    return SiteError(f"the backup is damaged: {what}; nothing was restored")


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    """What the archive tells of its tables, by name."""
    first = archive.next()
    content: Any = None
    if first is not None and first.name == _MANIFEST and first.size <= _MOST_MANIFEST_BYTES:
        with suppress(ValueError, RecursionError):
            content = json.loads(_content(archive, first))
    if not isinstance(content, dict) or not isinstance(content.get("tables"), dict):
        raise SiteError("the file is no backup of a site: it does not begin with backup.json")
    if content.get("format") not in _READ:
        raise SiteError(f"the backup's format is {clean(content.get('format'), 40)!r}; this flatout reads {FORMAT!r}")
    told: dict[str, Any] = content["tables"]
    for one in (told.get(table.name) for table in _TABLES):
        if not isinstance(one, dict) or type(one.get("rows")) is not int:
            raise _damaged("it does not tell how many rows its tables have")
    return told


def _must_be_empty(database: Database) -> None:
    with database.read() as conn:
        for table in metadata.sorted_tables:
            if conn.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
                raise SiteError(
                    f"this site is not empty (there are {table.name}): a backup is restored into a new one. "
                    "Give another --data or --database"
                )


def _put_files(archive: tarfile.TarFile, blobs: Blobs, settings: Settings, added: list[tuple[str, str]]) -> _Files:
    """Every file of the archive, its hash compared, into the store; they are needed by no run yet. `added`: gets those
    that were not there before."""
    found: _Files = {}
    most = {RECORDS: settings.max_record_bytes, SAMPLES: _ZIP_TIMES * settings.max_samples_bytes}
    for member in archive:
        match = _FILE.fullmatch(member.name)
        if not match or not member.isreg():
            continue
        kind, name = match[1], match[2]
        limit = f"at most {most[kind]:,} bytes are taken here ({_LIMITS[kind]} is the limit): nothing was restored"
        if member.size > most[kind]:
            raise SiteError(f"the file {member.name[:40]}… of the backup has {member.size:,} bytes, and {limit}")
        try:
            data = blobs.unpacked(kind, name, _content(archive, member), most[kind])
        except Unavailable as error:
            raise SiteError(
                f"the backup is damaged at {member.name[:40]}…, or that file is too large: {limit}"
            ) from error
        if not blobs.has(kind, name):
            added.append((kind, name))
        blobs.put(kind, data)
        found[kind, name] = member
    return found


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read(member.size) if file is not None else b""


def _put_table(archive: tarfile.TarFile, conn: Connection, table: sa.Table, told: Any, files: _Files) -> None:
    """All rows of a table; runs are counted, and ranked not yet."""
    rows = _rows(archive, table, told)
    if table is runs:
        later = sa.update(runs).where(runs.c.id == sa.bindparam("run")).values(successor_id=sa.bindparam("successor"))
        successors = []
        for row in rows:
            _put_run(archive, conn, {**row, "successor_id": None}, files)
            if row["successor_id"] is not None:  # a run that may come later
                successors.append({"run": row["id"], "successor": row["successor_id"]})
        if successors:
            conn.execute(later, successors)
    while batch := list(islice(rows, _BATCH)):
        conn.execute(sa.insert(table), batch)
    if conn.dialect.name == "postgresql" and "id" in table.c:  # the next number is beyond those that were put in
        highest = conn.scalar(sa.select(sa.func.max(table.c.id)))
        if highest is not None:
            conn.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, "id"), highest)))


def _put_run(archive: tarfile.TarFile, conn: Connection, row: dict[str, Any], files: _Files) -> None:
    """A run with all that its record tells; of a deleted one there is no record."""
    name = row["content_hash"]
    if row["state"] == store.DELETED:
        conn.execute(sa.insert(runs).values({**store.WIPED, "public_id": public_id_of(name), **row}))
        return
    for kind, needed in ((RECORDS, name), (SAMPLES, row["samples_hash"])):
        if needed is not None and (kind, needed) not in files:
            raise _damaged(f"the file {kind}/{needed[:12]}… is missing")
    try:
        taken = take_again(gzip.decompress(_content(archive, files[RECORDS, name])))
    except Refused as error:
        raise _damaged(f"the record {name[:12]}… is none that a site takes ({error})") from error
    if taken.content_hash != name:
        raise _damaged(f"the record {name[:12]}… is not written as a site writes it")
    store.insert_run(conn, {**row, **store.columns_of(taken, row["received_us"])}, taken.facts)


def _rows(archive: tarfile.TarFile, table: sa.Table, told: Any) -> Iterator[dict[str, Any]]:
    """The rows of a table, each of the types that its columns have, counted and hashed against what the manifest
    tells. Columns that an earlier flatout did not have are left out."""
    broken = _damaged(f"the table {table.name} is not as it was written")
    digest = hashlib.sha256()
    count = 0
    try:
        file = archive.extractfile(f"tables/{table.name}.jsonl.gz")
        if file is None:
            raise broken
        with gzip.GzipFile(fileobj=file, mode="rb") as lines:
            while line := lines.readline(_MOST_ROW_BYTES):
                digest.update(line)
                row = json.loads(line)
                count += 1
                if not isinstance(row, dict) or count > told["rows"]:
                    raise broken
                fault = _fault(table, row)
                if fault is not None:
                    raise _damaged(f"row {count:,} of {table.name} has a {fault} that cannot be")
                yield {name: row[name] for name in _TABLES[table] if name in row}
    except (KeyError, EOFError, ValueError, RecursionError, OSError, zlib.error) as error:
        raise broken from error
    if (told["rows"], told.get("sha256")) != (count, digest.hexdigest()):
        raise broken


def _fault(table: sa.Table, row: Mapping[str, Any]) -> str | None:
    """The column of a row whose value cannot be one of this table, or None. Whoever hands a backup over may have
    written it by hand."""
    for name in _TABLES[table]:
        column, value = table.c[name], row.get(name)
        if value is None:
            fits = column.nullable or (name not in row and column.server_default is not None)
        elif isinstance(column.type, sa.Integer):
            # SQLite's are all of 64 bits; where PostgreSQL has fewer, it says so
            fits = type(value) is int and -(2**63) <= value < 2**63
        else:
            fits = isinstance(value, str) and _is_text(value, getattr(column.type, "length", None))
        if not fits:
            return name
    for name, rule in _RULES.get(table.name, {}).items():
        if not rule.fullmatch(row[name]):
            return name
    return None


def _is_text(text: str, length: int | None) -> bool:
    """Unicode without half signs, without NUL (PostgreSQL has none); a text of bounded length is one line of it."""
    if "\0" in text or any(0xD800 <= ord(sign) < 0xE000 for sign in text):
        return False
    return length is None or (len(text) <= length and not any(unicodedata.category(sign) == "Cc" for sign in text))
