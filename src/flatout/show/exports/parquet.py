"""Parquet: the rows of the CSV with one type a column (needs `flatout[parquet]`)."""

from __future__ import annotations

import io

from flatout.record import Record
from flatout.show.exports import ExportError
from flatout.show.rows import COLUMNS, rows
from flatout.show.safe import clean


def write(record: Record) -> bytes:
    """Raises ExportError: pyarrow is missing, or a number in the record does not fit 64 bits."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError("Parquet needs pyarrow: pip install 'flatout[parquet]', or write CSV (--csv)") from error
    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    schema = pa.schema([(column.name, types[column.kind]) for column in COLUMNS])
    try:
        table = pa.Table.from_pylist(rows(record), schema=schema)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise ExportError(f"a number in the record does not fit a Parquet column ({str(error)[:120]})") from error
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"flatout": "cells/1", "run": clean(record.id)}), out)
    return out.getvalue()
