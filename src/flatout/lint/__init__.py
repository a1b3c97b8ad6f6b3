"""Inner consistency of a record, or of a published table: does each figure fit the others beside it?

Files: `finding` the rules' words, `sheet` one shape for both, `rules` what holds for any table, `record_rules` what
only a record has, `table` CSV and JSON in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from flatout.lint import finding as words
from flatout.lint import record_rules, rules, sheet
from flatout.lint.finding import Finding, LintError, Severity
from flatout.lint.sheet import Row, Sheet
from flatout.lint.table import MOST_ROWS, is_record, read_table
from flatout.record import Record
from flatout.record import read as read_record

MOST_FINDINGS: Final = 1000

__all__ = ["Finding", "LintError", "Row", "Severity", "Sheet", "lint", "read", "read_table"]


def lint(given: Record | Sheet, *, limits: Mapping[str, float] | None = None) -> list[Finding]:
    """What does not fit, in the order of the rules; empty for what is consistent. At most 1,000, then one that says so.

    `limits`: the hardware's limit in tok/s by cell id (`d/8192/4`, `p/8192`). Raises LintError for too many cells.
    """
    count = len(given.cells) if isinstance(given, Record) else len(given.rows)
    if count > MOST_ROWS:
        raise LintError(f"there are {count:,} cells, and at most {MOST_ROWS:,} are checked: no matrix is that large")
    order = list(words.TITLES)
    found = list(islice(_all(given, limits or {}), MOST_FINDINGS + 1))
    if len(found) > MOST_FINDINGS:
        found[MOST_FINDINGS:] = [words.finding(words.MANY, "", f"over {MOST_FINDINGS:,} findings")]
    return sorted(found, key=lambda one: order.index(one.rule))


def _all(given: Record | Sheet, limits: Mapping[str, float]) -> Iterator[Finding]:
    made = sheet.of_record(given) if isinstance(given, Record) else given
    yield from made.findings
    for rule in rules.ALL:
        yield from rule(made)
    yield from rules.limit(made, limits)
    if isinstance(given, Record):
        yield from record_rules.plan(given)
        for check in record_rules.ALL:
            for cell in given.cells:
                try:
                    yield from check(cell)
                except OverflowError:
                    yield words.finding(words.NUMBER, cell.id[:40], "a number is beyond all bounds")


def read(path: Path) -> Record | Sheet:
    """A record (file or directory), or a table as CSV or JSON. Raises RecordError and LintError."""
    if path.is_dir() or is_record(path):
        return read_record(path)
    return read_table(path)
