"""The writers of documents: what they show is whole, fits its width, and does nothing where it is shown."""

from __future__ import annotations

import html as standard_html
import re
import unicodedata
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flatout.show import document, safe
from flatout.show.document import Cell, Column, Heading, Item, Items, Paragraph, Table
from flatout.show.safe import HARD_SPACE, _cleaned, clean, for_encoding
from tests.hostile import HOSTILE, PARSER

WORDS = st.lists(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12), max_size=30)


@given(WORDS, st.integers(20, 60))
def test_folding_loses_nothing(words: list[str], width: int) -> None:
    lines = document.text([Paragraph(" ".join(words))], width).splitlines()
    assert all(len(part) <= width for part in lines)
    assert "".join(lines).replace(" ", "") == "".join(words)


def test_hard_spaces_are_kept_together() -> None:
    text = document.text([Paragraph(f"aaa bbb ccc 251K{HARD_SPACE}x{HARD_SPACE}8 eeee 12 %")], 20)
    assert text.splitlines() == ["aaa bbb ccc 251K x 8", "eeee 12 %"]


@given(st.text(max_size=120), st.text(max_size=30), st.integers(20, 80))
def test_any_text_holds_the_width(text: str, term: str, width: int) -> None:
    blocks = [Heading(text, term), Paragraph(text, term=term), Items([Item(text, term, "a", [text])])]
    assert all(cell_len(line) <= width for line in document.text(blocks, width).splitlines())


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=9).map(clean)


@given(st.integers(2, 9).flatmap(lambda n: st.lists(st.lists(TEXTS, min_size=n, max_size=n), min_size=1, max_size=6)),
       st.integers(30, 100))  # fmt: skip
def test_a_table_holds_the_width_and_shows_every_cell(rows: list[list[str]], width: int) -> None:
    count = len(rows[0])
    shown = document.text([Table([Column(f"h{i}") for i in range(count)], rows)], width)
    assert all(cell_len(line) <= width for line in shown.splitlines())
    for text in (text for row in rows for text in row):
        assert text.strip() in shown
    assert all(f"h{i}" in shown for i in range(1, count))


def test_a_wide_table_goes_on_below_with_its_key_again() -> None:
    table = Table([Column("key"), *(Column(f"column{i}") for i in range(6))], [["r", *map(str, range(6))]])
    assert [line.split() for line in document.text([table], 40).splitlines()] == [
        ["key", "column0", "column1", "column2"], ["r", "0", "1", "2"], [],
        ["key", "column3", "column4", "column5"], ["r", "3", "4", "5"],
    ]  # fmt: skip


def test_one_document_three_ways() -> None:
    blocks = [
        Heading("Decode", "total tok/s"),
        Table(
            [Column("n"), Column("tok/s")], [["1", Cell("9.5", mark="a", below="8 ms", word="queued")], ["2", "100"]]
        ),
        Items([Item("It waited.", "queued", "a", ["at 8K"])]),
        Paragraph("It is <b>so</b>.", term="note"),
        Paragraph("Done."),
    ]
    assert document.text(blocks, 40) == (
        "Decode  total tok/s\nn    tok/s\n1      9.5 a\n      8 ms\n    queued\n2      100\n\n"
        "a queued  It waited.\n          at 8K\n\nnote  It is <b>so</b>.\nDone."
    )
    assert document.markdown(blocks) == (
        "**Decode**: total tok/s\n\n| n | tok/s |\n| ---: | ---: |\n| 1 | 9.5ᵃ (8 ms) queued |\n| 2 | 100 |\n\n"
        "- ᵃ **queued**: It waited. at 8K\n\n**note**: It is &lt;b&gt;so&lt;/b&gt;.\n\nDone."
    )
    html = document.html(blocks)
    assert '<td>9.5<sup>a</sup><br><span class="soft">8 ms</span> queued</td>' in html
    assert "<h3>Decode</h3>" in html and "<p><strong>note</strong> It is &lt;b&gt;so&lt;/b&gt;.</p>" in html


@given(HOSTILE)
def test_nothing_acts_in_any_writer(text: str) -> None:
    cell = Cell(text, mark=text[:1], below=text, word=text)
    blocks = [
        Heading(text, text), Paragraph(text, term=text), Items([Item(text, text, details=[text])]),
        Table([Column("a"), Column(text)], [[text, cell]]), Paragraph(text, whole=True),
    ]  # fmt: skip
    assert all(c == "\n" or c.isprintable() for c in document.text(blocks, 60))
    markdown = document.markdown(blocks)
    assert all(c == "\n" or c == "\u2060" or c.isprintable() for c in markdown)
    kinds = {t.type for token in PARSER.parse(markdown) for t in (token.children or [])}
    assert kinds <= {"text", "text_special", "strong_open", "strong_close"}
    tags: set[str] = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.add(tag)  # type: ignore[method-assign]
    parser.feed(document.html(blocks))
    assert tags <= {"h3", "p", "strong", "ul", "li", "br", "span", "table", "thead", "tbody", "tr", "th", "td", "sup"}
    assert clean(text) in standard_html.unescape(document.html(blocks)).replace(HARD_SPACE, " ")


@given(st.text(max_size=80) | HOSTILE)
def test_escaped_text_is_shown_as_itself(text: str) -> None:
    shown = clean(text)
    for around in ("{}", "| a |\n|---|\n| {} |", "- x: {}", "**t**: {}"):
        tokens = PARSER.parse(around.format("x" + safe.markdown(text) + "x"))
        inline = [t for t in tokens if t.type == "inline"][-1].children or []
        plain = [t for t in inline if t.type in ("text", "text_special")]
        assert {t.type for t in inline} <= {"text", "text_special", "strong_open", "strong_close"}
        assert ("x" + shown + "x") in "".join(t.content for t in plain).replace("\u2060", "")


def test_no_mention_no_formula() -> None:
    assert safe.markdown("@octocat $x$ a@b.c") == "@\u2060octocat \\$x\\$ a@\u2060b.c"


AUTOLINKS = re.compile(r"(?i)(?:https?|ftp)://\S|(?<![a-z0-9])www\.\S|(?:mailto|xmpp):[a-z0-9]|[\w.+-]+@\w")
"""What GitHub makes a link of by itself (GFM, 6.9)."""


@given(
    st.sampled_from(
        ["https://evil.example/x", "HTTP://a.b", "(www.evil.example", "ftp://a.b", "mailto:a@b.c", "a@b.c"]
    ),
    st.text(max_size=10),
    st.text(max_size=10),
)
def test_no_address_becomes_a_link(address: str, before: str, after: str) -> None:
    shown = safe.markdown(f"{before}{address}{after}")
    assert not AUTOLINKS.search(shown), shown


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
