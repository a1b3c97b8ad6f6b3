"""The summary of a GitHub job (written to the file that GITHUB_STEP_SUMMARY names): Markdown, at most 1 MiB a step."""

from __future__ import annotations

from typing import Final

from flatout.record import Record
from flatout.show import about, markdown, measurements
from flatout.show.layout import HARD_SPACE
from flatout.show.markdown import escape

MOST_BYTES: Final = 1024 * 1024 - 4096
_LEFT_OUT: Final = (
    "The table of all measurements is left out: GitHub shows at most 1 MiB. It is in the record (--csv).\n"
)


def write(record: Record) -> str:
    """A heading with the one-look verdict, the tables of `--md`, and all measurements folded away."""
    verdict = about.verdict(record).replace(HARD_SPACE, " ")
    top = f"## flatout: {escape(about.title(record), 300)}\n\n**{escape(verdict)}**\n\n{markdown.render(record)}\n"
    whole = f"{top}\n{_details(record)}"
    if len(whole.encode()) <= MOST_BYTES:
        return whole
    short = f"{top}\n{_LEFT_OUT}"
    if len(short.encode()) <= MOST_BYTES:
        return short
    cells = f"{len(record.cells):,} cells are too many for a summary"
    return f"## flatout: {escape(about.title(record), 300)}\n\n**{escape(verdict)}**\n\n{cells}: see the record.\n"


def _details(record: Record) -> str:
    names = [" ".join(part for part in name if part) for name in measurements.HEAD]
    letter = about.letters(record)
    table = [names, ["---" if name in ("phase", "status") else "---:" for name in names]]
    for cell in record.cells:
        status = f"{about.status_word(cell.status)} {about.marks(cell, letter)}".strip()
        keys = [cell.phase, about.context(cell), str(cell.concurrency), status]
        table.append([escape(text, 200) for text in [*keys, *measurements.cells_of(cell)]])
    text = "\n".join("| " + " | ".join(row) + " |" for row in table)
    return f"<details><summary>All measurements</summary>\n\n{text}\n\n</details>\n"
