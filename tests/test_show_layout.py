"""Lines and columns: nothing is wider than it may be, nothing that fits is lost, nothing hostile gets through."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flatout.show.layout import (
    HARD_SPACE,
    Column,
    box,
    cut,
    flow,
    grid,
    line,
    paragraph,
    text_of,
    width_of,
    wrap,
)
from flatout.show.safe import _cleaned, clean, for_encoding

WORDS = st.lists(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12), max_size=30)


@given(WORDS, st.integers(1, 60))
def test_wrap_loses_nothing(words: list[str], width: int) -> None:
    lines = wrap(" ".join(words), width)
    assert all(len(part) <= width for part in lines)
    assert "".join(lines).replace(" ", "") == "".join(words)


@given(st.text(max_size=200), st.integers(2, 60))
def test_wrap_and_cut_hold_the_width_of_any_text(text: str, width: int) -> None:
    shown = clean(text)
    assert all(cell_len(part) <= width for part in wrap(shown, width))
    assert width_of(cut(line(shown), width)) <= width


def test_wrap_keeps_hard_spaces_together() -> None:
    assert wrap(f"aaa 251K{HARD_SPACE}×{HARD_SPACE}8", 10) == ["aaa", "251K × 8"]
    assert wrap("over 12 %", 8) == ["over", "12 %"]


def test_cut_says_that_it_cut() -> None:
    assert text_of(cut(line("abc", ("def", "bold")), 4)) == "abc…"
    assert text_of(cut(line("abcdef"), 6)) == "abcdef"
    assert text_of(cut(line("日本語です"), 5)) == "日本…"


@given(st.text(max_size=120), st.text(max_size=30), st.integers(8, 80))
def test_paragraphs_hold_the_width(text: str, term: str, width: int) -> None:
    lines = paragraph(clean(text), width, first=line((clean(term), "bold"), "  "))
    assert all(width_of(content) <= width for content in lines)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=9).map(clean)


@given(st.integers(2, 9).flatmap(lambda n: st.lists(st.lists(TEXTS, min_size=n, max_size=n), min_size=1, max_size=6)),
       st.integers(30, 100))  # fmt: skip
def test_grid_holds_the_width_and_shows_every_cell(rows: list[list[str]], width: int) -> None:
    count = len(rows[0])
    head = [box(f"h{i}") for i in range(count)]
    lines = grid(head, [[box(text) for text in row] for row in rows], [Column()] * count, width=width)
    assert all(width_of(content) <= width for content in lines)
    shown = "\n".join(map(text_of, lines))
    for row in rows:
        for text in row:
            assert text.rstrip() in shown
    for i in range(1, count):
        assert f"h{i}" in shown


def test_grid_splits_into_even_bands_with_the_key_again() -> None:
    head = [box("key"), *(box(f"column{i}") for i in range(6))]
    lines = list(map(text_of, grid(head, [[box("r")] + [box(str(i)) for i in range(6)]], [Column()] * 7, width=40)))
    assert [part.split() for part in lines] == [
        ["key", "column0", "column1", "column2"], ["r", "0", "1", "2"], [],
        ["key", "column3", "column4", "column5"], ["r", "3", "4", "5"],
    ]  # fmt: skip


def test_grid_aligns_right() -> None:
    lines = grid([box("k"), box("n")], [[box("a"), box("1")], [box("b"), box("100")]], [Column(), Column()], width=20)
    assert [text_of(content) for content in lines] == ["k    n", "a    1", "b  100"]


def test_flow_goes_on_below() -> None:
    assert [text_of(x) for x in flow([line("aaaa"), line("bbbb"), line("cccc")], 12)] == ["aaaa   bbbb", "cccc"]


@given(st.text(max_size=300))
def test_clean_text_does_nothing_to_a_terminal(text: str) -> None:
    shown = clean(text)
    assert all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in shown)
    assert clean(shown) == shown
    shown.encode("utf-8")


def test_clean_shows_what_it_took() -> None:
    assert clean("qwen\x1b[31m\x07") == "qwen�[31m�"
    assert clean("a\r\n\tb\u2028c") == "a b c"
    assert clean("gpj.\u202eexe") == "gpj.�exe"
    assert clean("\ud800x") == "�x"
    assert clean("z" + "\u0301" * 50) == "z" + "\u0301" * 4
    assert clean("x" * 600) == "x" * 499 + "…"
    assert clean("日本語 naïve") == "日本語 naïve"


@given(st.text(max_size=60), st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8", "nonsense", None]))
def test_any_encoding_can_take_it(text: str, encoding: str | None) -> None:
    shown = for_encoding(clean(text), encoding)
    shown.encode("ascii" if encoding == "nonsense" else encoding or "utf-8")


def test_our_signs_have_ascii_spellings() -> None:
    assert for_encoding("8K × 4 ≥ 20 · ±0.4 % —", "ascii") == "8K x 4 >= 20 | +/-0.4 % -"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("ab \t\u202e\u0301"), max_size=60), st.integers(1, 40))
def test_the_short_way_to_clean_a_plain_text_changes_nothing(text: str, limit: int) -> None:
    for told in (text, text.encode("ascii", "ignore").decode(), text.strip() + " x  y"):
        long_way = _cleaned(told[: limit * 4])
        cut = long_way if len(long_way) <= limit else long_way[: limit - 1].rstrip() + "…"
        assert clean(told, limit) == cut
