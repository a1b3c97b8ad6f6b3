"""What a backup says, before any of it is believed: whoever hands one over may have written it by hand."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from flatout.site.accounts import NAME_PATTERN

MOST_ROWS: Final = 2**53
_REVISION: Final = re.compile(r"[0-9a-f]{4,40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_STATES: Final = frozenset({"public", "queued", "hidden", "withdrawn", "deleted"})


def parsed(text: bytes) -> Any:
    """JSON. Raises ValueError for what is none, is nested too deeply, or holds numbers that JSON does not have."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number that JSON has")


def manifest_fault(content: Mapping[str, Any]) -> str | None:
    """What is wrong with the manifest of a backup of our format, or None."""
    revision = content.get("revision")
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        return "it does not tell the version of its tables"
    tables = content.get("tables")
    if not isinstance(tables, dict) or not all(map(_told, tables.values())):
        return "it does not tell how many rows its tables have"
    return None


def _told(table: Any) -> bool:
    """Rows and SHA-256 of one table."""
    if not isinstance(table, dict):
        return False
    rows, digest = table.get("rows"), table.get("sha256")
    return (
        isinstance(rows, int)
        and not isinstance(rows, bool)
        and 0 <= rows <= MOST_ROWS
        and isinstance(digest, str)
        and _SHA256.fullmatch(digest) is not None
    )


def row_fault(table: sa.Table, row: Mapping[str, Any]) -> str | None:
    """The column of a row whose value cannot be one of this table, or None. `row`: a value for every column."""
    for column in table.columns:
        value = row[column.name]
        if value is None:
            if not column.nullable:
                return str(column.name)
        elif not _fits(column.type, value):
            return str(column.name)
    if table.name == "accounts" and not re.fullmatch(NAME_PATTERN, row["name"]):
        return "name"
    if table.name == "runs":
        if row["state"] not in _STATES:
            return "state"
        if not _is_object(row["summary"]):
            return "summary"
    return None


def _fits(kind: Any, value: Any) -> bool:
    if isinstance(kind, sa.Boolean):
        return isinstance(value, bool)
    if isinstance(kind, sa.Integer):
        # SQLite's are all of 64 bits; where PostgreSQL has fewer, it says so
        return type(value) is int and -(2**63) <= value < 2**63
    if isinstance(kind, sa.Numeric | sa.Float):
        return math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < 2**63
    if isinstance(kind, sa.String):
        return isinstance(value, str) and _is_text(value, kind.length)
    return False


def _is_text(text: str, length: int | None) -> bool:
    """Unicode without half signs, without NUL (PostgreSQL has none); a text of bounded length is one line of it."""
    if "\0" in text or any(0xD800 <= ord(sign) < 0xE000 for sign in text):
        return False
    return length is None or (len(text) <= length and not any(unicodedata.category(sign) == "Cc" for sign in text))


def _is_object(text: str) -> bool:
    try:
        return isinstance(parsed(text.encode()), dict)
    except ValueError:
        return False
