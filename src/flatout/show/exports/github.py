"""The summary of a GitHub job (written to the file that GITHUB_STEP_SUMMARY names): Markdown, at most 1 MiB a step."""

from __future__ import annotations

from typing import Final

from flatout.record import Record
from flatout.show import about, document, result, safe

MOST_BYTES: Final = 1024 * 1024 - 4096
_LEFT_OUT: Final = (
    "The table of all measurements is left out: GitHub shows at most 1 MiB. It is in the record (--csv).\n"
)


def write(record: Record) -> str:
    """A heading with the one-look verdict, the tables of `--md`, and all measurements folded away."""
    verdict = safe.markdown(about.verdict(record))
    head = f"## flatout: {safe.markdown(about.title(record), 300)}\n\n**{verdict}**\n\n"
    top = f"{head}{document.markdown(result.pasted(record))}\n"
    table = document.markdown([result.measurements(record, about.letters(record))])
    whole = f"{top}\n<details><summary>All measurements</summary>\n\n{table}\n\n</details>\n"
    too_many = f"{head}{len(record.cells):,} cells are too many for a summary: see the record.\n"
    return next((text for text in (whole, f"{top}\n{_LEFT_OUT}") if len(text.encode()) <= MOST_BYTES), too_many)
