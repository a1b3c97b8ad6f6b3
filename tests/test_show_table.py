"""The tables: everything of the seed's page is there, every flag and reason is told, no line is too wide."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from flatout.flags import SENTENCES, Flag
from flatout.record import Record
from flatout.show import about, numbers, table
from tests import records

HERE = Path("results/run/record.json")


def joined(text: str) -> str:
    """Without line breaks and repeated spaces: as it reads."""
    return " ".join(text.split())


def rows_of(text: str, phase: str) -> list[list[str]]:
    """The long table's rows of a phase as words."""
    after = text.split("All measurements", 1)[1]
    return [row.split() for row in after.splitlines() if row.startswith(phase + " ")]


def test_the_seed_page_is_all_there() -> None:
    record = records.seed_page()
    text = table.plain(record, 150, HERE)
    rows = rows_of(text, "prefill") + rows_of(text, "decode")
    seed = json.loads(records.SEED.read_text(encoding="utf-8"))["cells"]
    assert len(rows) == len(seed) == 55
    for row, cell in zip(rows, seed, strict=True):
        assert row[:3] == [cell["phase"], cell["context_label"], str(cell["concurrency"])]
        told = " ".join(row)
        for value, form in (
            (cell["total_tok_s"], numbers.rate),
            (cell["per_request_tok_s"], numbers.rate),
            (cell["ttft_ms"], lambda v: numbers.ms(v, unit=False)),
            (cell["itl_ms"], lambda v: numbers.ms(v, fine=True, unit=False)),
            (cell["output_tokens"], numbers.count),
        ):
            if value is not None:
                assert form(value) in told
        if cell["average_active"] is not None:
            assert {numbers.mean(cell["average_active"]), str(int(cell["completed"])), "30.0"} <= set(row)
        if cell["status"] in ("not_run", "over_capacity"):
            assert set(row[-11:]) == {"—"}
    for fact in ("H200 NVL", "141", "0.5.6.post3.dev9269+g834400705", "BF16", "cuda-13.2", "834400705f2d",
                 "github.com/sgl-project/sglang", "--api-key <redacted>", "262,144 tokens"):  # fmt: skip
        assert fact in text


def test_the_seed_pages_matrix() -> None:
    text = table.plain(records.seed_page(), 100, HERE, wide=False)
    lines = text.splitlines()
    at = next(i for i, row in enumerate(lines) if row.startswith("Decode"))
    assert lines[at + 1].split() == ["context", "1", "2", "4", "8", "16", "32", "64", "128"]
    assert lines[at + 2].split() == ["8K", "454.2", "842.3", "1,509", "2,422", "a", "3,607", "4,657", "not", "run",
                                     "over"]  # fmt: skip
    assert lines[at + 3].split()[:4] == ["86", "ms", "83", "ms"] and lines[at + 3].split()[-1] == "capacity"
    assert lines[at + 4].split() == ["doubtful", "queued"]
    # digits stand under digits
    for column in ("1,509", "1,481", "1,357", "1,151", "846.6"):
        row = next(row for row in lines if column in row)
        assert row.index(column) + len(column) == lines[at + 2].index("1,509") + 5
    assert "37 of 55 cells measured, 11 doubtful, 3 queued" in text
    assert joined(SENTENCES[Flag.CONTAMINATED]) in joined(text)
    assert "8K × 8; 16K × 2, 8, 16; 32K × 2, 16; 64K × 2, 8; 128K × 2, 4; 251K × 2" in joined(text)
    assert "8K × 32 (31.2 ran), 16K × 32 (29.7 ran)" in joined(text)
    assert "8K × 64; 16K × 64: stopped early by the user" in joined(text)
    assert "How many at once at ≥ 20 tok/s each? 8K: ≥16 · 16K: ≥4?" in joined(text)
    assert text.splitlines()[-1] == "record  results/run/record.json"


def test_cold_and_warm_ttft_stand_side_by_side() -> None:
    text = table.plain(records.seed_page(), 100, None, wide=False)
    assert ["8K", "37.1K", "±0.4", "%", "219", "ms", "86", "ms"] in [row.split() for row in text.splitlines()]


def test_every_flag_and_status_is_told_with_its_sentence() -> None:
    record = records.every_kind()
    for wide in (False, True):
        text = joined(table.plain(record, 100, HERE, wide=wide))
        for word, sentence in SENTENCES.items():
            if word != "valid":
                assert word.replace("_", " ") in text
                assert joined(sentence) in text
        for told in ("A flag that this version", "later flag", "brand new", "CUDA out of memory", "connection reset",
                     "interrupted before the end", "(stopped by the user)", "! the server refused ignore_eos",
                     "1K × 8 (4.0 ran)", "launched together", "7 of 15 cells measured"):  # fmt: skip
            assert told in text


def test_marks_lead_to_their_sentence() -> None:
    record = records.every_kind()
    letter = about.letters(record)
    assert list(letter.values()) == list("abcdefghijklmno") and list(letter)[-1] == "later_flag"
    text = table.plain(record, 120, None, wide=False)
    assert "180.0 abc" in text and "300.0 defghijklmn" in text and "9,100 e" in text
    for name, mark in letter.items():
        assert re.search(rf"^{mark} {name.replace('_', ' ')} ", text, re.MULTILINE)


def test_missing_is_a_dash_and_has_its_reason() -> None:
    text = table.plain(records.every_kind(), 160, None)
    row = next(row for row in rows_of(text, "decode") if row[:3] == ["decode", "1K", "2"])
    assert row[8:] == ["90.0", "—", "11.0", "15.4", "2.0", "2.0", "0", "5,400", "30.0", "s", "—"]
    assert "TTFT p50: no request gave one (1K × 2)" in text


@pytest.mark.parametrize("kind", [records.seed_page, records.every_kind])
@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 140, 250])
@pytest.mark.parametrize("wide", [False, True])
def test_no_line_is_too_wide(kind: object, width: int, wide: bool) -> None:
    record: Record = kind()  # type: ignore[operator]
    for row in table.plain(record, width, None, wide=wide).splitlines():
        assert cell_len(row) <= width
        assert row == row.rstrip() and "\x1b" not in row


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_console_gets_the_same_in_colour(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system="truecolor", legacy_windows=False)
    table.render(records.seed_page(), console, path=None, wide=True)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert bare != file.getvalue() and "\x1b" not in bare
    assert all(cell_len(row) < width for row in bare.splitlines())
    assert bare.rstrip("\n") == table.plain(records.seed_page(), width - 1, None)


def test_colours_are_off_where_the_console_has_none() -> None:
    file = io.StringIO()
    table.render(records.every_kind(), Console(file=file, width=90), path=HERE)
    assert "\x1b" not in file.getvalue() and "results/run/record.json" in file.getvalue()


def test_a_console_that_knows_no_unicode_does_not_break() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, "ascii")
    table.render(records.every_kind(), Console(file=file, width=90), path=None)
    file.flush()
    assert b"8K x 1" in raw.getvalue()


def test_the_path_is_never_folded() -> None:
    path = Path("/srv/" + "x" * 100 + "/record.json")
    assert table.plain(records.every_kind(), 60, path).splitlines()[-1] == f"record  {path}"


def test_an_empty_record_has_a_table() -> None:
    text = table.plain(records.record([]), 80, None)
    assert "0 of 0 cells measured" in text


HOSTILE = st.text(st.characters(codec="utf-8") | st.sampled_from("\x1b\x07\x9b\r\n\u202e|`<"), min_size=1, max_size=40)


def hostile(text: str) -> Record:
    """A record in which every string of a server is the text."""
    record = records.every_kind()
    record.model.id = records.fact(text)
    record.engine.name = record.engine.version = record.engine.launch_command = records.fact(text)
    record.hardware.facts = {text: records.fact(text), "gpu": records.fact(text)}
    record.warnings = [text]
    record.state_reason = text
    for cell in record.cells:
        cell.context = text[:12]
        cell.reason = cell.error = text
        for flag in cell.flags:
            flag.detail = text
    return record


@settings(max_examples=40, deadline=None)
@given(HOSTILE, st.integers(30, 120))
def test_nothing_from_a_server_reaches_the_terminal_alive(text: str, width: int) -> None:
    shown = table.plain(hostile(text), width, None)
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert all(cell_len(row) <= width for row in shown.splitlines())
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system="standard", legacy_windows=False)
    table.render(hostile(text), console, path=None)
    assert re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).replace("\n", "").isprintable()


def test_markup_in_a_name_is_only_text() -> None:
    file = io.StringIO()
    table.render(hostile("[red]x[/red] :smile:"), Console(file=file, width=120), path=None)
    assert "[red]x[/red] :smile:" in file.getvalue()
