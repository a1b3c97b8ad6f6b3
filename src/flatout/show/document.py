"""One document, three ways to write it: for a terminal (rich, in colour or as plain text), as Markdown, as HTML.

What is shown to people is built once, as a list of blocks; texts from a server may stand in it as they are: each writer
makes them harmless (`show.safe`).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from flatout.show import safe
from flatout.show.safe import GLUE, HARD_SPACE

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

NARROWEST: Final = 20
"""Columns below which nothing is folded any further."""
TEXT_WIDEST: Final = 110
"""Sentences are not set wider than they can be read, however wide the terminal."""
_FOLDED: Final = 34  # columns of a text that may go on below, in a table
_SUPERSCRIPT: Final = str.maketrans("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")


@dataclass(frozen=True, slots=True)
class Heading:
    """A name over what follows; `note`: what the numbers below it are."""

    text: str
    note: str = ""
    style: str = "bold"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences. `term`: a bold word before them; `style`: rich's words; `whole`: never folded, to be copied; `apart`:
    with a blank line before it."""

    text: str
    style: str = ""
    term: str = ""
    term_style: str = "bold"
    whole: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a list. `term`: what it is about, with its footnote letter; `details`: lines below the text."""

    text: str
    term: str = ""
    mark: str = ""
    details: Sequence[str] = ()
    style: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    items: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Column:
    """`folds`: its texts may go on below where the table is wide."""

    name: str
    align: Literal["left", "right"] = "right"
    folds: bool = False
    style: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A number with its footnote letters (`mark`), a second figure `below` it, and a `word` where it is not simply
    valid."""

    text: str
    style: str = ""
    mark: str = ""
    below: str = ""
    word: str = ""
    word_style: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`keys`: the first columns, which stand again where a table too wide is dealt onto several bands. `air`: rows of
    many lines stand apart; `aligned`: Markdown's columns stand in line as text, too."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]
    keys: int = 1
    air: bool = False
    aligned: bool = False
    short: int = field(default=200, repr=False)  # characters of one cell that are shown


Block = Heading | Paragraph | Items | Table
Document = Sequence[Block]


# --- Terminal ---------------------------------------------------------------------------------------------------------


def text(document: Document, width: int = 100) -> str:
    """Plain text without colours or controls, no line wider than `width` (at least 20)."""
    from rich.console import Console

    width = max(NARROWEST, width)
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    return "\n".join(line.rstrip() for line in _captured(document, console, width).splitlines())


def render(document: Document, console: Console) -> None:
    """Prints it in the console's width, in colour where it has any."""
    # one column less than the console: a line that fills it whole wraps in some terminals
    shown = _captured(document, console, max(NARROWEST, console.width - 1))
    lines = (line.rstrip(" ") for line in safe.for_encoding(shown, console.encoding).splitlines())
    console.file.write("\n".join(lines) + "\n")


def _captured(document: Document, console: Console, width: int) -> str:
    from rich.text import Text

    with console.capture() as capture:
        for block in _spaced(document):
            if isinstance(block, Paragraph) and block.whole:
                line = Text.assemble((f"{block.term}  " if block.term else "", block.term_style), _shown(block.text))
                console.print(line, soft_wrap=True, highlight=False)
                continue
            for part in [Text("")] if block is None else _rendered(block, width):
                console.print(part, width=width, highlight=False)
    return capture.get().replace(GLUE, " ")


def _spaced(document: Document) -> Iterator[Block | None]:
    """The blocks, with None for each blank line: none within a group of paragraphs, none below a heading."""
    last: Block | None = None
    for block in document:
        together = isinstance(last, Paragraph) and isinstance(block, Paragraph) and not block.apart
        if last is not None and not isinstance(last, Heading) and not together:
            yield None
        yield block
        last = block


def _shown(text: str, limit: int = 4000) -> str:
    shown = safe.clean(text, limit, keep=HARD_SPACE)
    return shown.replace(" %", f"{GLUE}%").replace(" × ", f"{GLUE}×{GLUE}").replace(HARD_SPACE, GLUE)


def _rendered(block: Block, width: int) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    narrow = min(width, TEXT_WIDEST)
    if isinstance(block, Heading):
        note = _shown(block.note)
        fits = len(block.text) + 2 + len(note) <= width
        yield _text(_shown(block.text), block.style, note if fits else "", "dim")
        if note and not fits:
            yield Padding(Text(note, "dim"), (0, width - narrow, 0, 0))
    elif isinstance(block, Paragraph):
        term = _shown(block.term)
        yield Padding(_text(term, block.term_style, _shown(block.text), block.style), (0, width - narrow, 0, 0))
    elif isinstance(block, Items):
        yield from _list(block.items, narrow)
    else:
        yield from _bands(block, width)


def _text(term: str, term_style: str, text: str, style: str) -> Text:
    from rich.text import Text

    return Text.assemble((term + ("  " if term and text else ""), term_style), (text, style))


def _list(items: Sequence[Item], width: int) -> Iterator[RenderableType]:
    """Terms in a column of their own beside their texts; below each other where that leaves too little room."""
    from rich.cells import cell_len
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    marks = any(item.mark for item in items)
    terms = max([cell_len(_shown(item.term)) for item in items], default=0)
    beside = terms + 2 * marks <= width // 2
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for item in items:
        term = Text.assemble((f"{item.mark} " if marks else "", "magenta"), (_shown(item.term), item.style or "bold"))
        body = Text(_shown(item.text))
        for detail in item.details:
            body.append(f"\n{_shown(detail)}", "dim")
        if beside:
            grid.add_row(term, body)
        else:
            yield term
            yield Padding(body, (0, 0, 0, 2))
    if beside:
        yield Padding(grid, (0, 0, 0, 0 if terms else 2 * marks))


def _bands(table: Table, width: int) -> Iterator[RenderableType]:
    """A table without rules. Too wide: first the gap shrinks, then its columns are dealt onto bands below each other,
    each with the keys again."""
    from rich.cells import cell_len
    from rich.text import Text

    grid = [[_cell(entry, table.short) for entry in row] for row in table.rows]
    marks = [max([len(row[i].mark) for row in grid], default=0) for i in range(len(table.columns))]
    wide = []
    for i, column in enumerate(table.columns):
        lines = [part for row in grid for part in (row[i].text, row[i].below, row[i].word)]
        lines += column.name.split("\n")
        widest = max(map(cell_len, lines))
        wide.append((min(widest, _FOLDED) if column.folds else widest) + (marks[i] + 1 if marks[i] else 0))
    gap = next((g for g in (3, 2, 1) if sum(wide) + g * (len(wide) - 1) <= width), 2)
    room = width - sum(wide[: table.keys]) - gap * table.keys
    for number, band in enumerate(_dealt(wide, table.keys, room, gap)):
        if number:
            yield Text("")
        yield _band(table, grid, [*range(table.keys), *band], wide, marks, gap)


def _dealt(wide: Sequence[int], keys: int, room: int, gap: int) -> list[list[int]]:
    """The columns after the keys, on as few bands as hold them, about equally many on each."""

    def deal(most: int) -> list[list[int]]:
        bands: list[list[int]] = [[]]
        for i in range(keys, len(wide)):
            used = sum(wide[j] + gap for j in bands[-1])
            if bands[-1] and (used + wide[i] > room or len(bands[-1]) >= most):
                bands.append([])
            bands[-1].append(i)
        return bands

    fewest = len(deal(len(wide)))
    return next(bands for most in range(1, len(wide) + 1) if len(bands := deal(most)) <= fewest)


def _band(
    table: Table, grid: Sequence[Sequence[Cell]], chosen: Sequence[int], wide: Sequence[int], marks: Sequence[int],
    gap: int,
) -> RenderableType:  # fmt: skip
    from rich.table import Table as Grid
    from rich.text import Text

    shown = Grid(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for i in chosen:
        column, pad = table.columns[i], GLUE * (marks[i] + 1 if marks[i] else 0)
        name = Text(_shown_lines(column.name) + pad, column.style or "dim")
        shown.add_column(name, justify=column.align, no_wrap=not column.folds, max_width=wide[i])
    for row in grid:
        texts = [_cell_text(row[i], marks[i]) for i in chosen]
        if table.air and row is not grid[-1]:
            texts[0].append("\n" * max(text.plain.count("\n") + 1 for text in texts))
        shown.add_row(*texts)
    return shown


def _shown_lines(name: str) -> str:
    return "\n".join(map(_shown, name.split("\n")))


def _cell(entry: Cell | str, limit: int) -> Cell:
    """A cell with harmless texts."""
    cell = Cell(entry) if isinstance(entry, str) else entry
    shown = [_shown(part, limit) for part in (cell.text, cell.mark, cell.below, cell.word)]
    return Cell(shown[0], cell.style, shown[1], shown[2], shown[3], cell.word_style)


def _cell_text(cell: Cell, marks: int) -> Text:
    """The marks stand in a column of their own, so that digits stand under digits."""
    from rich.text import Text

    text = Text()
    pad = GLUE * (marks + 1) if marks else ""
    text.append(cell.text, cell.style or None)
    text.append(f" {cell.mark.ljust(marks, GLUE)}" if cell.mark else pad, "magenta")
    for part, style in ((cell.below, "dim"), (cell.word, cell.word_style)):
        text.append(f"\n{part}{pad}" if part else "", style)
    return text


def put(document: Document, *, md: bool = False, plain: bool = False, width: int = 100) -> None:
    """To the standard output: Markdown, in colour in a terminal's width, or plain text of that width."""
    if md:
        print(markdown(document))
    elif plain or not sys.stdout.isatty():
        print(safe.for_encoding(text(document, width), getattr(sys.stdout, "encoding", None)))
    else:
        from rich.console import Console

        render(document, Console())


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(document: Document) -> str:
    """Markdown that GitHub and forums show right: nothing from a record can act in it."""
    made = ""
    for before, block in zip([None, *document], document, strict=False):
        # two lists with a blank line between are one whose items are paragraphs
        gap = "\n" if isinstance(before, Items) and isinstance(block, Items) else "\n\n"
        made += (gap if made else "") + _markdown(block)
    return made


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"**{safe.markdown(block.text)}**" + (f": {safe.markdown(block.note, 2000)}" if block.note else "")
    if isinstance(block, Paragraph):
        return _term(block.term) + safe.markdown(block.text, 4000)
    if isinstance(block, Items):
        return "\n".join(_markdown_item(item) for item in block.items)
    lefts = [column.align == "left" for column in block.columns]
    rows = [[safe.markdown(column.name.replace("\n", " ")) for column in block.columns]]
    rows += [[_markdown_cell(entry, block.short) for entry in row] for row in block.rows]
    wide = [max(len(row[i]) for row in rows) if block.aligned else 4 for i in range(len(lefts))]
    rows.insert(1, ["-" * (w - 1) + ("-" if left else ":") for left, w in zip(lefts, wide, strict=True)])
    if block.aligned:
        rows = [
            [t.ljust(w) if left else t.rjust(w) for t, left, w in zip(row, lefts, wide, strict=True)] for row in rows
        ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _term(term: str) -> str:
    return f"**{safe.markdown(term)}**{'' if term.endswith('?') else ':'} " if term else ""


def _markdown_item(item: Item) -> str:
    mark = f"{item.mark.translate(_SUPERSCRIPT)} " if item.mark else ""
    text = safe.markdown(" ".join(part for part in (item.text, "; ".join(item.details)) if part), 4000)
    return f"- {mark}{_term(item.term)}{text}"


def _markdown_cell(entry: Cell | str, limit: int) -> str:
    cell = Cell(entry) if isinstance(entry, str) else entry
    text = safe.markdown(cell.text, limit) + safe.markdown(cell.mark).translate(_SUPERSCRIPT)
    text += f" ({safe.markdown(cell.below, limit)})" if cell.below else ""
    return f"{text} {safe.markdown(cell.word, limit)}" if cell.word else text


# --- HTML -------------------------------------------------------------------------------------------------------------


def html(document: Document, level: int = 3) -> str:
    """A fragment of HTML: headings of that level, paragraphs, lists and tables without styles of their own; what is
    dim has the class `soft`."""
    return "\n".join(_html(block, level) for block in document)


def _html(block: Block, level: int) -> str:
    if isinstance(block, Heading):
        note = f'\n<p class="soft">{safe.html(block.note)}</p>' if block.note else ""
        return f"<h{level}>{safe.html(block.text)}</h{level}>{note}"
    if isinstance(block, Paragraph):
        term = f"<strong>{safe.html(block.term)}</strong> " if block.term else ""
        return f"<p{_soft(block.style)}>{term}{safe.html(block.text)}</p>"
    if isinstance(block, Items):
        return f"<ul>{''.join(map(_html_item, block.items))}</ul>"
    head = "".join(f"<th{_left(c)}>{safe.html(c.name)}</th>" for c in block.columns)
    rows = (
        "".join(f"<td{_left(c)}>{_html_cell(e)}</td>" for c, e in zip(block.columns, row, strict=True))
        for row in block.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _soft(style: str) -> str:
    return ' class="soft"' if style == "dim" else ""


def _left(column: Column) -> str:
    return ' class="l"' if column.align == "left" else ""


def _html_item(item: Item) -> str:
    mark = f"<sup>{safe.html(item.mark)}</sup> " if item.mark else ""
    term = f"<strong>{safe.html(item.term)}</strong> " if item.term else ""
    details = "".join(f'<br><span class="soft">{safe.html(detail)}</span>' for detail in item.details)
    return f"<li>{mark}{term}{safe.html(item.text)}{details}</li>"


def _html_cell(entry: Cell | str) -> str:
    cell = Cell(entry) if isinstance(entry, str) else entry
    mark = f"<sup>{safe.html(cell.mark)}</sup>" if cell.mark else ""
    below = f'<br><span class="soft">{safe.html(cell.below)}</span>' if cell.below else ""
    word = f" {safe.html(cell.word)}" if cell.word else ""
    return f"{safe.html(cell.text)}{mark}{below}{word}"
