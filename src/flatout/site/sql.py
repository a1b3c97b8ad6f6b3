"""What SQLAlchemy does not have for both databases alike: a column that no index is to be used for, letters folded, and
rows that add to those that are there."""

from __future__ import annotations

import string
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Unindexed(GenericFunction[Any]):
    """The column as it is. SQLite, which has no statistics here, then leaves its indexes to other conditions; with
    them PostgreSQL chooses better itself."""

    inherit_cache = True


class Folded(GenericFunction[str]):
    """ASCII letters in lower case: what both databases can do alike."""

    inherit_cache = True


@compiles(Unindexed, "sqlite")
def _unindexed_sqlite(element: Any, compiler: Any, **more: Any) -> str:
    return f"+{compiler.process(element.clauses, **more)}"


@compiles(Unindexed, "postgresql")
def _unindexed_postgresql(element: Any, compiler: Any, **more: Any) -> str:
    return str(compiler.process(element.clauses, **more))


@compiles(Folded, "sqlite")
def _folded_sqlite(element: Any, compiler: Any, **more: Any) -> str:
    return f"lower({compiler.process(element.clauses, **more)})"


@compiles(Folded, "postgresql")
def _folded_postgresql(element: Any, compiler: Any, **more: Any) -> str:
    inner = compiler.process(element.clauses, **more)
    return f"translate({inner}, '{string.ascii_uppercase}', '{string.ascii_lowercase}')"


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column's values, for conditions and orders that another index serves better."""
    return Unindexed(column, type_=column.type)


def holds(column: ColumnElement[str], word: str) -> ColumnElement[bool]:
    """The text holds the word, whatever the case of ASCII letters."""
    escaped = word.translate(LOWER).replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return Folded(column).like(f"%{escaped}%", escape="\\")


def upsert(conn: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that takes `on_conflict_do_update`."""
    return postgresql.insert(table) if conn.dialect.name == "postgresql" else sqlite.insert(table)
