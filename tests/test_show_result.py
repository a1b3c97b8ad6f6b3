"""The result as a document: everything of a record is there, every flag and reason is told, no line is too wide."""

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
from flatout.show import about, document, numbers
from flatout.show.result import pasted, result
from flatout.show.summary import summary
from tests import records
from tests.hostile import HOSTILE, PARSER, hostile, tables

HERE = Path("results/run/record.json")


def plain(record: Record, width: int, path: Path | None, *, wide: bool) -> str:
    return document.text(result(record, path=path, wide=wide), width)


def markdown(record: Record) -> str:
    return document.markdown(pasted(record))


def joined(text: str) -> str:
    """Without line breaks and repeated spaces: as it reads."""
    return " ".join(text.split())


def rows_of(text: str, phase: str) -> list[list[str]]:
    """The long table's rows of a phase as words."""
    after = text.split("All measurements", 1)[1]
    return [row.split() for row in after.splitlines() if row.startswith(phase + " ")]


def test_the_seed_page_is_all_there() -> None:
    record = records.seed_page()
    text = plain(record, 150, HERE, wide=True)
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
    text = plain(records.seed_page(), 100, HERE, wide=False)
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
    text = plain(records.seed_page(), 100, None, wide=False)
    assert ["8K", "37.1K", "±0.4", "%", "219", "ms", "86", "ms"] in [row.split() for row in text.splitlines()]


def test_every_flag_and_status_is_told_with_its_sentence() -> None:
    record = records.every_kind()
    for wide in (False, True):
        text = joined(plain(record, 100, HERE, wide=wide))
        for word, sentence in SENTENCES.items():
            if word != "valid":
                assert word.replace("_", " ") in text
                assert joined(sentence) in text
        for told in ("A flag that this version", "later flag", "brand new", "CUDA out of memory", "connection reset",
                     "interrupted before the end", "(stopped by the user)", "note the server refused ignore_eos",
                     "1K × 8 (4.0 ran)", "launched together", "7 of 15 cells measured"):  # fmt: skip
            assert told in text


def test_marks_lead_to_their_sentence() -> None:
    record = records.every_kind()
    letter = about.letters(record)
    assert list(letter.values()) == list("abcdefghijklmno") and list(letter)[-1] == "later_flag"
    text = plain(record, 120, None, wide=False)
    assert "180.0 abc" in text and "300.0 defghijklmn" in text and "9,100 e" in text
    for name, mark in letter.items():
        assert re.search(rf"^{mark} {name.replace('_', ' ')} ", text, re.MULTILINE)


def test_missing_is_a_dash_and_has_its_reason() -> None:
    text = plain(records.every_kind(), 160, None, wide=True)
    row = next(row for row in rows_of(text, "decode") if row[:3] == ["decode", "1K", "2"])
    assert row[8:] == ["90.0", "—", "—", "11.0", "15.4", "2.0", "2.0", "0", "5,400", "30.0", "s", "—"]
    assert "TTFT p50: no request gave one (1K × 2)" in text


@pytest.mark.parametrize("kind", [records.seed_page, records.every_kind])
@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 140, 250])
@pytest.mark.parametrize("wide", [False, True])
def test_no_line_is_too_wide(kind: object, width: int, wide: bool) -> None:
    record: Record = kind()  # type: ignore[operator]
    for row in plain(record, width, None, wide=wide).splitlines():
        assert cell_len(row) <= width
        assert row == row.rstrip() and "\x1b" not in row


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_console_gets_the_same_in_colour(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system="truecolor", legacy_windows=False)
    document.render(result(records.seed_page(), wide=True), console)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert bare != file.getvalue() and "\x1b" not in bare
    assert all(cell_len(row) < width for row in bare.splitlines())
    assert [row.rstrip() for row in bare.splitlines()] == plain(
        records.seed_page(), width - 1, None, wide=True
    ).splitlines()


def test_colours_are_off_where_the_console_has_none() -> None:
    file = io.StringIO()
    document.render(result(records.every_kind(), path=HERE), Console(file=file, width=90))
    assert "\x1b" not in file.getvalue() and "results/run/record.json" in file.getvalue()


def test_a_console_that_knows_no_unicode_does_not_break() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, "ascii")
    document.render(result(records.every_kind(), path=None), Console(file=file, width=90))
    file.flush()
    assert b"8K x 1" in raw.getvalue()


def test_the_path_is_never_folded() -> None:
    path = Path("/srv/" + "x" * 100 + "/record.json")
    assert plain(records.every_kind(), 60, path, wide=True).splitlines()[-1] == f"record  {path}"


def test_an_empty_record_has_a_table() -> None:
    text = plain(records.record([]), 80, None, wide=True)
    assert "0 of 0 cells measured" in text


@settings(max_examples=15, deadline=None)
@given(HOSTILE, st.integers(30, 120))
def test_nothing_from_a_server_reaches_the_terminal_alive(text: str, width: int) -> None:
    shown = plain(hostile(text), width, None, wide=True)
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert all(cell_len(row) <= width for row in shown.splitlines())
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system="standard", legacy_windows=False)
    document.render(result(hostile(text), wide=False), console)
    assert re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).replace("\n", "").isprintable()


def test_markup_in_a_name_is_only_text() -> None:
    file = io.StringIO()
    document.render(result(hostile("[red]x[/red] :smile:"), path=None), Console(file=file, width=120))
    assert "[red]x[/red] :smile:" in file.getvalue()


def test_the_seed_page_as_tables() -> None:
    prefill, decode = tables(markdown(records.seed_page()))
    assert [row[0] for row in prefill] == ["context", "8K", "16K", "32K", "64K", "128K", "251K", "256K"]
    assert prefill[1] == ["8K", "37.1K", "±0.4 %", "219 ms", "86 ms"]
    assert decode[0] == ["context", "1", "2", "4", "8", "16", "32", "64", "128"]
    assert decode[1] == [
        "8K", "454.2 (86 ms)", "842.3 (83 ms)", "1,509 (84 ms)", "2,422ᵃ (96 ms) doubtful", "3,607 (229 ms)",
        "4,657 (651 ms) queued", "not run", "over capacity",
    ]  # fmt: skip
    assert all(len(row) == 9 for row in decode) and len(decode) == 7


def test_header_legend_and_answer() -> None:
    text = markdown(records.every_kind())
    shown = PARSER.render(text).replace("&quot;", '"')
    assert text.startswith("**Qwen/Qwen3.5-4B on H200 NVL 141 GB**\n\n")
    assert "How many at once at ≥ 20 tok/s each?" in shown and "</strong>: the server refused ignore_eos" in shown
    assert 'HTTP 500: {"error": "CUDA out of memory"}' in shown
    for word, sentence in SENTENCES.items():
        assert word == "valid" or sentence in shown
    for mark in "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒ":
        assert f"<li>{mark} <strong>" in shown
    assert len(tables(text)) == 3


@settings(max_examples=30, deadline=None)
@given(HOSTILE)
def test_a_hostile_record_keeps_its_tables(text: str) -> None:
    made = markdown(hostile(text))
    assert all(c == "\n" or c == "\u2060" or c.isprintable() for c in made)
    calm = tables(markdown(records.every_kind()))
    shapes = [[len(row) for row in rows] for rows in tables(made)]
    # contexts that are all the same fall into fewer rows of the matrix; no table gains or loses a column
    assert [rows[0] for rows in shapes] == [len(rows[0]) for rows in calm]
    assert all(len(set(rows)) == 1 for rows in shapes)
    kinds = {t.type for token in PARSER.parse(made) for t in (token.children or [])}
    assert kinds <= {"text", "text_special", "strong_open", "strong_close"}


def test_summary_is_json_and_says_what_the_record_says() -> None:
    record = records.seed_page()
    path = records.SEED
    found = json.loads(json.dumps(summary(record, path), allow_nan=False))
    assert found["path"] == str(path) and found["model"] == "Qwen/Qwen3.5-4B" and found["cells_measured"] == 37
    assert len(found["cells"]) == found["cells_planned"] == 55
    by_id = {cell["id"]: cell for cell in found["cells"]}
    cell = by_id["d/8192/8"]
    assert (cell["status"], cell["flags"], cell["total_tok_s"], cell["ttft_p50_ms"], cell["itl_p50_ms"]) == (
        "doubtful", ["contaminated"], 2422.2, 96.0, 3.2,
    )  # fmt: skip
    assert "total_tok_s" not in by_id["d/8192/128"] and by_id["d/8192/128"]["reason"].startswith("128 x (8,192")
    assert by_id["p/8192"]["prefill_tok_s"] == 37_100.0
    assert found["at_once"]["contexts"][0]["text"] == "≥16" and found["at_once"]["contexts"][0]["met"] == 16


@settings(max_examples=40, deadline=None)
@given(HOSTILE)
def test_summary_can_be_printed(text: str) -> None:
    made = json.dumps(summary(hostile(text), None), ensure_ascii=False)
    assert made.isprintable()
    for name in re.findall(r'"(\w+_(?:p50|p99)\w*)"', made):
        assert name.endswith("_ms")


def test_an_address_in_a_warning_is_not_linked_and_still_read() -> None:
    record = records.seed_page().model_copy(update={"warnings": ["look at https://evil.example/login"]})
    told = markdown(record)
    assert "https://" not in told and "evil.example/login" in told
