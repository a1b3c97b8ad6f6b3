"""Markdown: it parses into the tables that were meant, and nothing from the record acts in it."""

from __future__ import annotations

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from flatout.flags import SENTENCES
from flatout.show import markdown, summary
from flatout.show.safe import clean
from tests import records
from tests.test_show_table import HOSTILE, hostile

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def tables(text: str) -> list[list[list[str]]]:
    """Tables as rows of rendered cell texts."""
    found: list[list[list[str]]] = []
    tokens = PARSER.parse(text)
    for i, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("th_open", "td_open"):
            children = tokens[i + 1].children or []
            assert all(child.type in ("text", "text_special") for child in children), children
            found[-1][-1].append("".join(child.content for child in children))
    return found


def test_the_seed_page_as_tables() -> None:
    prefill, decode = tables(markdown.render(records.seed_page()))
    assert [row[0] for row in prefill] == ["context", "8K", "16K", "32K", "64K", "128K", "251K", "256K"]
    assert prefill[1] == ["8K", "37.1K", "±0.4 %", "219 ms", "86 ms"]
    assert decode[0] == ["context", "1", "2", "4", "8", "16", "32", "64", "128"]
    assert decode[1] == [
        "8K", "454.2 (86 ms)", "842.3 (83 ms)", "1,509 (84 ms)", "2,422ᵃ (96 ms) doubtful", "3,607 (229 ms)",
        "4,657 (651 ms) queued", "not run", "over capacity",
    ]  # fmt: skip
    assert all(len(row) == 9 for row in decode) and len(decode) == 7


def test_header_legend_and_answer() -> None:
    text = markdown.render(records.every_kind())
    shown = PARSER.render(text).replace("&quot;", '"')
    assert text.startswith("**Qwen/Qwen3.5-4B on H200 NVL 141 GB**\n\n")
    assert "How many at once at ≥ 20 tok/s each?" in shown and "</strong>: the server refused ignore_eos" in shown
    assert 'HTTP 500: {"error": "CUDA out of memory"}' in shown
    for word, sentence in SENTENCES.items():
        assert word == "valid" or sentence in shown
    for mark in "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒ":
        assert f"<li>{mark} <strong>" in shown
    assert len(tables(text)) == 3


@given(st.text(max_size=80) | HOSTILE)
def test_escaped_text_is_shown_as_itself(text: str) -> None:
    shown = clean(text)
    for around in ("{}", "| a |\n|---|\n| {} |", "- x: {}", "**t**: {}"):
        tokens = PARSER.parse(around.format("x" + markdown.escape(text) + "x"))
        inline = [t for t in tokens if t.type == "inline"][-1].children or []
        plain = [t for t in inline if t.type in ("text", "text_special")]
        assert {t.type for t in inline} <= {"text", "text_special", "strong_open", "strong_close"}
        assert ("x" + shown + "x") in "".join(t.content for t in plain).replace("\u2060", "")


@settings(max_examples=60, deadline=None)
@given(HOSTILE)
def test_a_hostile_record_keeps_its_tables(text: str) -> None:
    made = markdown.render(hostile(text))
    assert all(c == "\n" or c == "\u2060" or c.isprintable() for c in made)
    calm = tables(markdown.render(records.every_kind()))
    shapes = [[len(row) for row in rows] for rows in tables(made)]
    # contexts that are all the same fall into fewer rows of the matrix; no table gains or loses a column
    assert [rows[0] for rows in shapes] == [len(rows[0]) for rows in calm]
    assert all(len(set(rows)) == 1 for rows in shapes)
    kinds = {t.type for token in PARSER.parse(made) for t in (token.children or [])}
    assert kinds <= {"text", "text_special", "strong_open", "strong_close"}


def test_no_mention_no_formula() -> None:
    assert markdown.escape("@octocat $x$ a@b.c") == "@\u2060octocat \\$x\\$ a@\u2060b.c"


def test_summary_is_json_and_says_what_the_record_says() -> None:
    record = records.seed_page()
    path = records.SEED
    found = json.loads(json.dumps(summary.summary(record, path), allow_nan=False))
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
    made = json.dumps(summary.summary(hostile(text), None), ensure_ascii=False)
    assert made.isprintable()
    for name in re.findall(r'"(\w+_(?:p50|p99)\w*)"', made):
        assert name.endswith("_ms")


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
    shown = markdown.escape(f"{before}{address}{after}")
    assert not AUTOLINKS.search(shown), shown


def test_an_address_in_a_warning_is_not_linked_and_still_read() -> None:
    record = records.seed_page().model_copy(update={"warnings": ["look at https://evil.example/login"]})
    told = markdown.render(record)
    assert "https://" not in told and "evil.example/login" in told
