"""Lint: what does not fit is found, what fits is left alone, and no file breaks it."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from flatout.compare import check, compare, fail_if
from flatout.flags import Flag as FlagName
from flatout.flags import Status
from flatout.lint import Finding, LintError, lint, read, read_table
from flatout.lint.table import NAMES, number, parse_table
from flatout.record import Cell, Flag, Record, RecordError, Tokens, dump
from flatout.show import comparison, document, summary
from flatout.show import findings as show
from tests import records
from tests.hostile import HOSTILE, hostile

K = 1024
CONTAMINATED = {
    "8K × 8", "16K × 2", "16K × 8", "16K × 16", "32K × 2", "32K × 16", "64K × 2", "64K × 8", "128K × 2", "128K × 4",
    "251K × 2",
}  # fmt: skip


def cells(found: list[Finding], rule: str, *severities: str) -> set[str]:
    return {one.cell for one in found if one.rule == rule and (not severities or one.severity in severities)}


def seed() -> list[Finding]:
    return lint(read(records.SEED))


def test_the_seed_page_eleven_cells_ran_more_than_asked() -> None:
    assert cells(seed(), "active") == CONTAMINATED


def test_the_seed_page_dip() -> None:
    (one,) = [f for f in seed() if f.rule == "dip"]
    assert one.cell == "128K × 2" and "258.1" in one.what and "846.6" in one.what


def test_the_seed_page_completions() -> None:
    found = seed()
    assert cells(found, "completions", "error") == {"16K × 32"}
    (one,) = [f for f in found if f.rule == "completions" and f.severity == "error"]
    assert one.what.startswith("65 completed × 4,096 tokens = 266,240") and "119,904" in one.what
    assert "32K × 32" in cells(found, "completions", "note")  # what was begun before the window may explain it


def test_the_seed_page_low_counts() -> None:
    low = cells(seed(), "few")
    assert {name for name in low if name.startswith("prefill")} == {
        f"prefill {c}" for c in ("8K", "16K", "32K", "64K", "128K", "251K", "256K")
    }
    assert {name for name in low if not name.startswith("prefill")} == {
        "8K × 1", "16K × 1", "32K × 1", "32K × 2", "64K × 1", "64K × 2", "128K × 1", "128K × 2", "128K × 4", "251K × 1",
        "251K × 2", "251K × 4",
    }  # fmt: skip


def test_the_seed_page_the_rest() -> None:
    """Fault C6: prompts 2.1 % shorter than their label. Fault C7: a warm TTFT of 8K that is 39 % of the cold one."""
    found = seed()
    assert cells(found, "prefill") == {f"prefill {c}" for c in ("16K", "32K", "64K", "128K", "251K", "256K")}
    assert cells(found, "warm") == {"8K × 1"}
    assert cells(found, "request") == {"128K × 2"}
    assert cells(found, "streams") == {"32K × 2", "64K × 2", "128K × 2", "251K × 2"}
    assert not cells(found, "tokens") and not cells(found, "number")


def page_csv() -> str:
    """The seed's table of all measurements as the page shows it: headings, units, thousands and dashes."""
    names = {
        "Phase": "phase", "Context": "context_label", "Requests at once": "concurrency", "Status": "status",
        "Total tok/s": "total_tok_s", "Per request tok/s": "per_request_tok_s", "TTFT": "ttft_ms",
        "Time between tokens": "itl_ms", "Average active requests": "average_active",
        "Completed requests": "completed", "Output tokens": "output_tokens", "Measured for": "measured_s",
    }  # fmt: skip
    units = {"ttft_ms": " ms", "itl_ms": " ms", "measured_s": " s"}
    file = io.StringIO()
    out = csv.writer(file, delimiter=";")
    out.writerow(names)
    for row in json.loads(records.SEED.read_text())["cells"]:
        line = []
        for key in names.values():
            value = row[key]
            if value is None:
                line.append("—")
            elif key == "total_tok_s" and row["phase"] == "prefill":
                line.append(f"{value / 1000:.1f}K")
            elif key == "status":
                line.append(value.replace("_", " ").capitalize())
            elif isinstance(value, float):
                line.append((f"{value:,.0f}" if value == round(value) and key != "measured_s" else f"{value:,}")
                            + units.get(key, ""))  # fmt: skip
            else:
                line.append(str(value))
        out.writerow(line)
    return file.getvalue()


def test_the_page_as_csv_says_the_same() -> None:
    found = lint(parse_table(page_csv().encode()))
    expected = seed()
    for rule in ("active", "dip", "few", "prefill", "warm", "request", "tokens", "number"):
        assert cells(found, rule) == cells(expected, rule), rule
    assert not cells(found, "completions")  # the length of an answer is not in the table


def test_seed_findings_as_text_and_markdown() -> None:
    found = seed()
    text = document.text(show.document(found), 100)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert text.splitlines()[-1] == show.sentence(found) == "12 errors, 32 warnings and 8 notes in 31 cells"
    first = document.markdown(show.document(found)).split("\n\n")[1]
    assert set(re.findall(r"^- \*\*(.+?)\*\*:", first, re.MULTILINE)) - {"why", "do"} == CONTAMINATED
    assert document.text(show.document([])) == show.CLEAN
    json.dumps(show.data(found))


def clean_record() -> Record:
    """A record in which everything fits: two rows, each stream 100 tok/s less what the others cost."""
    made: list[Cell] = []
    for label, tokens in (("8K", 8 * K), ("32K", 32 * K)):
        cold_ms = tokens / 20_000 * 1e3
        made.append(records.prefill(label, tokens, 20_000.0, cold_ms))
        for n in (1, 2, 4, 8):
            each = 100.0 * 0.95 ** (n - 1) * (0.8 if tokens > 8 * K else 1.0)
            rate = n * 4096 / (0.05 + 4096 / each)
            cell = records.decode(label, tokens, n, rate, each_tok_s=each, ttft_ms=50.0, itl_ms=1e3 / each,
                                  active=float(n), completed=n, output=rate * 30)  # fmt: skip
            assert cell.decode is not None
            cell.tokens = Tokens(source="running counts", in_window=rate * 30)
            cell.decode.prompt_tokens_min = cell.decode.prompt_tokens_max = tokens
            cell.decode.cached_tokens_mean = tokens - 16.0
            cell.decode.output_tokens_mean = 4096.0
            cell.decode.cold_ttft_ms = cold_ms
            cell.decode.itl_ms.max = cell.decode.itl_ms.p99
            made.append(cell)
    return records.record(made)


def test_a_clean_record_has_no_finding() -> None:
    assert lint(clean_record()) == []
    unmeasured = [records.decode("64K", 64 * K, n, status=s) for n, s in enumerate(Status, 1) if s not in (
        Status.VALID, Status.REQUESTS_QUEUED, Status.DOUBTFUL)]  # fmt: skip
    made = clean_record()
    made.cells += unmeasured
    assert lint(made) == []


def test_a_clean_record_as_a_table_has_no_finding() -> None:
    rows = []
    for cell in clean_record().cells:
        if cell.decode is None:
            continue
        tok_s, each_tok_s = cell.decode.total_tok_s.value or 0, cell.decode.per_request_tok_s.p50 or 0
        rows.append({
            "phase": cell.phase, "context": cell.context, "concurrency": cell.concurrency, "max_output": 4096,
            "total_tok_s": round(tok_s, 1), "per_request_tok_s": round(each_tok_s, 1), "ttft_ms": 50,
            "itl_ms": round(1e3 / each_tok_s, 1), "active": float(cell.concurrency), "measured_s": 300.0,
            "completed": int(tok_s * 300 / 4096), "output_tokens": round(tok_s * 300),
        })  # fmt: skip
    assert lint(parse_table(json.dumps(rows).encode())) == []


def test_our_own_summary_is_a_table() -> None:
    found = lint(parse_table(json.dumps(summary.summary(records.seed_page(), None)).encode()))
    assert cells(found, "active") == CONTAMINATED and cells(found, "dip") == {"128K × 2"}


def d(record: Record, cell: str = "d/8192/4") -> Any:
    """A cell of the record."""
    return next(c for c in record.cells if c.id == cell)


def set_to(path: str, value: Any, cell: str = "d/8192/4") -> Callable[[Record], None]:
    def change(record: Record) -> None:
        *way, last = path.split(".")
        at = d(record, cell)
        for name in way:
            at = getattr(at, name)
        setattr(at, last, value)

    return change


def dipping(record: Record) -> None:
    figures = d(record, "d/8192/2").decode
    figures.total_tok_s = records.rate(50.0)
    figures.output_tokens, d(record, "d/8192/2").tokens.in_window = 1500.0, 1500.0
    figures.completed = 0


def few_prompts(record: Record) -> None:
    d(record, "p/8192").prefill.samples = d(record, "p/8192").prefill.samples[:2]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("active", set_to("decode.active_server_mean", 4.3)),
        ("active", set_to("decode.active_own_mean", 4.3)),
        ("tokens", set_to("decode.output_tokens", 9_000.0)),
        ("tokens", set_to("tokens.in_window", 9_000.0)),
        ("request", set_to("decode.tpot_ms.p50", 5.0)),
        ("completions", set_to("decode.completed", 60)),
        ("answers", set_to("max_output", 64)),
        ("dip", dipping),
        ("few", few_prompts),
        ("few", set_to("decode.ttft_ms.n", 4)),
        ("label", set_to("decode.prompt_tokens_min", 8000)),
        ("label", set_to("prefill.prompt_tokens", 8400, "p/8192")),
        ("prefill", lambda r: setattr(d(r, "p/8192").prefill.samples[1], "ttft_ms", 300.0)),
        ("warm", set_to("decode.cached_tokens_mean", 100.0)),
        ("streams", set_to("decode.ttft_ms.p50", 20_000.0)),
        ("number", set_to("decode.waiting_server_mean", -1.0)),
        ("number", set_to("decode.per_request_tok_s.p50", -5.0)),
        ("number", set_to("concurrency", 0)),
        ("interval", set_to("decode.total_tok_s.high", 1.0)),
        ("interval", set_to("decode.itl_ms.p90", 1.0)),
        ("interval", set_to("decode.ttft_ms.p50_low", 60.0)),
        ("status", set_to("decode", None)),
        ("status", set_to("flags", [Flag(name=FlagName.LOOPING, detail="x")])),
        ("status", set_to("status", "doubtful")),
        ("window", set_to("window.length_s", 31.0)),
        ("twice", lambda r: r.cells.append(r.cells[3])),
        ("missing", lambda r: r.plan.order.append("d/65536/1")),
    ],
)  # fmt: skip
def test_each_rule_finds_what_was_planted(rule: str, change: Callable[[Record], None]) -> None:
    made = clean_record()
    change(made)
    if rule == "interval":
        figures = d(made).decode
        figures.ttft_ms.p50_high = 70.0
    found = lint(made)
    assert rule in {one.rule for one in found}, found
    for one in found:
        assert one.what and one.why and one.todo and one.severity in ("error", "warning", "note")


def test_what_a_record_says_itself_is_a_note() -> None:
    found = lint(records.seed_page())
    assert cells(found, "active", "note") == CONTAMINATED and not cells(found, "active", "error")


def test_the_limit_of_the_hardware() -> None:
    made = clean_record()
    limits = {c.id: (c.decode.total_tok_s.value or 0) * 1.2 for c in made.cells if c.decode is not None}
    assert lint(made, limits=limits) == []
    limits["d/8192/4"] /= 1.5
    assert cells(lint(made, limits=limits), "limit") == {"8K × 4"}
    table = parse_table(b"context,concurrency,total_tok_s\n8K,1,454.2\n8K,2,842.3")
    assert cells(lint(table, limits={"d/8192/1": 400.0, "d/8192/2": 900.0}), "limit") == {"8K × 1"}


def test_a_fall_within_the_noise_is_no_dip() -> None:
    made = clean_record()
    dipping(made)
    for cell in made.cells:
        if cell.decode is not None:
            rate = cell.decode.total_tok_s
            rate.low, rate.high = (rate.value or 0) * 0.2, (rate.value or 0) * 3
    assert not cells(lint(made), "dip")


@pytest.mark.parametrize(
    ("text", "name", "value", "half"),
    [
        ("37.1K", "rate_tok_s", 37_100.0, 50.0), ("2,325 ms", "ttft_ms", 2325.0, 0.5),
        ("1.2 s", "ttft_ms", 1200.0, 0.5),
        ("454.2", "rate_tok_s", 454.2, 0.05), ("30", "window_s", 30.0, 0.05), ("2", "itl_ms", 2.0, 0.05),
        ("12 345", "output_tokens", 12_345.0, 0.5), ("1e3", "rate_tok_s", 1000.0, 5e-7), ("-3", "active", -3.0, 0.05),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text: str, name: str, value: float, half: float) -> None:
    made = number(text, name)
    assert made is not None and made.value == pytest.approx(value) and made.half == pytest.approx(half)


def test_a_json_number_that_was_rounded_to_thousands() -> None:
    made = number(37_100.0, "rate_tok_s")
    assert made is not None and made.half == 50.0
    assert number(True) is None and number(None) is None and number("—") is None


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"), (b"   \n", "empty"), (b"{", "not JSON"), (b'{"cells": [', "not JSON"), (b"[]", "no table"),
        (b"[1, 2]", "no table"), (b'{"a": 1}', "no table"), (b"PK\x03\x04\0\0", "not text"), (b"a,b\n1,2", "no column"),
        (b"[" * 100_000, "not JSON"), (b'[{"x": 1}]', "no column"), (b'"' + b"a," * 1000, "no column"),
        (b"context,ttft\n\"" + b"x" * 200_000, "no CSV"),
    ],
)  # fmt: skip
def test_what_is_no_table(data: bytes, what: str) -> None:
    with pytest.raises(LintError, match=what):
        parse_table(data)


def test_files_that_are_not_there_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(LintError, match="cannot read"):
        read_table(tmp_path / "none.json")
    cut = tmp_path / "record.json"
    cut.write_text(dump(clean_record())[:3000])
    with pytest.raises(RecordError, match="cut off"):
        read(cut)
    cut.write_text(dump(clean_record()).replace("flatout-record/1", "flatout-record/9"))
    with pytest.raises(RecordError, match="update"):
        read(cut)
    cut.write_text(dump(clean_record()))
    assert lint(read(cut)) == [] and lint(read(tmp_path)) == []


def test_values_that_cannot_be_in_a_table() -> None:
    data = (
        '[{"context": "8K", "concurrency": 4, "total_tok_s": NaN, "ttft_ms": -5, "completed": 1e999, "itl_ms": "?!"}]'
    )
    found = lint(parse_table(data.encode()))
    assert {"rate_tok_s is nan", "completed is inf", "itl_ms is '?!': no number", "ttft_ms is -5"} <= {
        one.what for one in found
    }


def test_a_million_cells_are_refused_or_checked_soon() -> None:
    start = time.monotonic()
    cell = records.decode("8K", 8 * K, 1, 100.0)
    with pytest.raises(LintError, match="1,000,000 cells"):
        lint(records.record([cell]).model_copy(update={"cells": [cell] * 1_000_000}))
    row = b'{"context":"8K","concurrency":1,"total_tok_s":100},'
    with pytest.raises(LintError, match="rows"):
        parse_table(b"[" + (row * 300_000)[:-1] + b"]")
    many = b"\n".join(b"8K,1,100,2.5" for _ in range(90_000))
    found = lint(parse_table(b"context,concurrency,total_tok_s,active\n" + many))
    assert len(found) == 1001 and found[-1].rule == "many"
    assert time.monotonic() - start < 60


cell_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(
    ["37.1K", "2,325 ms", "—", "8K", "decode", "prefill", "Valid", "1e308", "9" * 300, "max"]
)  # fmt: skip
columns = st.sampled_from([alias for aliases in NAMES.values() for alias in aliases]) | st.text(max_size=8)


@settings(deadline=None)
@given(st.lists(st.dictionaries(columns, cell_values, max_size=12), min_size=1, max_size=8))
def test_any_json_table_is_checked_or_refused(rows: list[dict[str, Any]]) -> None:
    checked(json.dumps({"cells": rows, "run": {"max_output_tokens": 4096}}).encode())


@settings(deadline=None)
@given(st.binary(max_size=400) | st.text("context,;\n8K\t12.5|ttft_ms \"'-—", max_size=300).map(str.encode))
def test_any_bytes_are_checked_or_refused(data: bytes) -> None:
    checked(data)
    checked(b"context,concurrency,total_tok_s,ttft_ms\n" + data)


def checked(data: bytes) -> None:
    try:
        found = lint(parse_table(data))
    except LintError as error:
        assert str(error)
        return
    text = document.text(show.document(found), 60)
    assert all(c == "\n" or c.isprintable() for c in text)


@settings(deadline=None, max_examples=40)
@given(HOSTILE, st.integers(1, 120))
def test_hostile_records_are_checked_and_shown_harmlessly(text: str, width: int) -> None:
    found = lint(hostile(text))
    shown = document.text(show.document(found), width)
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert all(cell_len(line) <= max(width, document.NARROWEST) for line in shown.splitlines())
    assert "<script" not in document.markdown(show.document(found))
    json.dumps(show.data(found), allow_nan=False)


LEAVES = [-1, 0, 10**400, -(10**400), 1e308, -1e308, 5e-324, 0.5, 3, None, True, "\u202e", [], {}]


@st.composite
def broken_records(draw: st.DrawFn) -> Record:
    """A record in which some leaves hold what nobody measured, as far as the record's own reading lets it through."""
    content = json.loads(draw(st.sampled_from([dump(clean_record()), dump(records.every_kind())])))
    for _ in range(draw(st.integers(1, 12))):
        at: Any = draw(st.sampled_from(content["cells"])) if draw(st.integers(0, 9)) else content
        while True:
            keys = list(range(len(at))) if isinstance(at, list) else list(at)
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(at[key], dict | list) and at[key]:
                at = at[key]
                continue
            before, at[key] = at[key], draw(st.sampled_from(LEAVES))
            try:
                Record.model_validate(content)
            except ValueError:
                at[key] = before
            break
    return Record.model_validate(content)


@settings(deadline=None, max_examples=100)
@given(broken_records(), broken_records())
def test_broken_records_are_checked_compared_and_shown(one: Record, other: Record) -> None:
    found = lint(one, limits={"d/8192/1": 5.0})
    document.markdown(show.document(found))
    assert all(c == "\n" or c.isprintable() for c in document.text(show.document(found), 80))
    made = compare([one, other])
    outcomes = check(
        made, fail_if("completed > 3; total_tok_s < -3%; completed > +3; ttft_ms.mean > +1%; longest_gap_ms < -1")
    )
    json.dumps(comparison.data(made, outcomes), allow_nan=False)
    document.text(comparison.document(made, every=True), 100)
    document.markdown(comparison.document(made, every=True))
    document.text(comparison.outcome_items(outcomes))
