"""A comparison as one self-contained HTML file: no script at all, nothing to load, and a policy that says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flatout.compare import Comparison, Outcome, Verdict
from flatout.flags import Flag, Status
from flatout.show import about
from flatout.show.comparison import METHOD
from flatout.show.page import compared_head, compared_matrix, compared_table
from flatout.show.page.compared_words import SIGNS, STEPS, Facing, facing
from flatout.show.page.frame import asset, document
from flatout.show.page.head import navigation
from flatout.show.page.html import Html, join, tag
from flatout.show.page.words import DEFINITIONS
from flatout.show.safe import clean

MOST_PAIRS: Final = 12
_TERMS: Final = frozenset({"TTFT", "Prefill tok/s", "Total tok/s", "Per request tok/s", "Time between tokens (ITL)"})


@dataclass(frozen=True, slots=True)
class Fragment:
    """The comparison's parts, for a larger page that holds them: the sheet's text, and everything that is shown."""

    style: str
    body: Html


def fragment(comparison: Comparison) -> Fragment:
    """What `render` shows, without a document around it. It needs no script."""
    return Fragment(_style(), _main(comparison, _shown(comparison), ()))


def render(comparison: Comparison, outcomes: Sequence[Outcome] = ()) -> str:
    """One self-contained HTML file for a comparison. `outcomes`: what `--fail-if` found, to stand above the numbers.

    Raises nothing for any comparison that `compare` yields; of many sides the first are shown, and it says so.
    """
    shown = _shown(comparison)
    main = tag("main", _main(comparison, shown, outcomes), id="main")
    skip = tag("a", "To the numbers", href=f"#{shown[0].letter}", class_="skip")
    body = tag("body", skip, main, tag("footer", _footer(comparison)))
    name = compared_head.title(comparison)
    told = f"{name}: {compared_head.plain_sentence(comparison.pairs[0])}"
    return document(f"{name} · flatout comparison", told, body, style=_style())  # no script has a place in it


def _shown(comparison: Comparison) -> list[Facing]:
    chosen = comparison.pairs[:MOST_PAIRS]
    level = 2 if len(chosen) == 1 else 3
    return [facing(pair, number, level=level) for number, pair in enumerate(chosen, 1)]


def _main(comparison: Comparison, shown: Sequence[Facing], outcomes: Sequence[Outcome]) -> Html:
    several = len(shown) > 1
    pairs = [_pair(pair, comparison, several=several) for pair in shown]
    links = [link for _, found in pairs for link in found]
    left = len(comparison.pairs) - len(shown)
    more = (
        tag("p", f"{left} more sides are not shown here; flatout compare names all.", class_="warn") if left else None
    )
    return join(
        compared_head.head(comparison, shown, outcomes), more,
        navigation([*links, ("legend", "Legend")]), [made for made, _ in pairs], _legend(comparison, shown),
    )  # fmt: skip


def _pair(shown: Facing, comparison: Comparison, *, several: bool) -> tuple[Html, list[tuple[str, str]]]:
    """A pair's sections, and the links to them."""
    parts = [
        ("decode", "Sustained decode", compared_matrix.section(shown)),
        ("prefill", "Prefill", compared_table.prefill(shown)),
        ("bursts", "Bursts", compared_table.bursts(shown)),
        ("changed", "Statuses that changed", compared_table.changes(shown)),
        ("all", "All figures", compared_table.full(shown, comparison if shown.number == 1 else None)),
    ]
    there = [(name, word, made) for name, word, made in parts if made is not None]
    sections = [made for _, _, made in there]
    if not several:
        return tag("div", sections, id=shown.letter, class_="pair"), [(shown.place(n), word) for n, word, _ in there]
    title = f"{shown.letter} against A"
    made = tag(
        "section",
        tag("h2", title),
        tag("p", tag("b", compared_head.plain_sentence(shown.pair)), ".", class_="verdict"),
        compared_head.banner(shown.pair, shown.letter),
        sections,
        id=shown.letter,
        class_="pair",
    )
    return made, [(shown.letter, title)]


def _legend(comparison: Comparison, shown: Sequence[Facing]) -> Html:
    verdicts = [
        ("up2", Verdict.FASTER, "faster", "The runs tell the two apart, and B is the faster one. Of TTFT and ITL less "
         "is faster."),
        ("down2", Verdict.SLOWER, "slower", "The runs tell the two apart, and B is the slower one."),
        ("same", Verdict.SAME, "no difference seen", "The runs do not tell the two apart. “Could show” is the smallest "
         "true difference that they would have found in nine of ten cases: below it, nothing was ruled out."),
        ("unknown", Verdict.UNKNOWN, "cannot be told", "A side has no number or no interval; the reason stands there."),
    ]  # fmt: skip
    items = [
        tag("div", tag("dt", tag("span", SIGNS[verdict], f" {word}", class_=f"pill {kind}")), tag("dd", text))
        for kind, verdict, word, text in verdicts
    ]
    doubt = "A check failed on a side: the verdict stands, is counted apart, and touches no other cell's."
    items.append(tag("div", tag("dt", tag("span", "◆ doubtful", class_="pill doubt")), tag("dd", doubt)))
    colours = ", ".join(f"{(step - 1) * 100:.0f} %" for step in STEPS)
    terms = [tag("div", tag("dt", word), tag("dd", text)) for word, text in DEFINITIONS if word in _TERMS]
    return tag(
        "section", tag("h2", "Legend", id="legend"),
        tag("div", tag("div", tag("h3", "Verdicts"), tag("dl", items, class_="terms")), _states(comparison, shown),
            class_="two"),
        tag("h3", "How it is computed"),
        tag("p", METHOD, f" The colour of a difference grows stronger at {colours}.", class_="cap"),
        tag("h3", "Definitions"), tag("dl", terms, class_="terms wideterms"),
        tag("p", "Rates have K = 1000, M = 1,000,000; contexts K = 1024. “—” is not known, never zero.", class_="cap"),
        class_="legend",
    )  # fmt: skip


def _states(comparison: Comparison, shown: Sequence[Facing]) -> Html:
    """Statuses and flags that occur, in a sentence each."""
    states = {status for pair in shown for cell in pair.cells for status in (*cell.a_status, *cell.b_status)}
    cells = (cell for side in comparison.sides for record in side.records for cell in record.cells)
    flags = {flag.name for cell in cells for flag in cell.flags}
    made = [
        *_terms((s, about.status_word(s), about.status_sentence(s)) for s in Status if s in states),
        *_terms((f, f.replace("_", " "), about.flag_sentence(f)) for f in Flag if f in flags),
    ]
    return tag("div", tag("h3", "Statuses and flags here"), tag("dl", made, class_="terms"))


def _terms(found: Iterable[tuple[str, str, str]]) -> list[Html]:
    return [tag("div", tag("dt", word), tag("dd", sentence)) for _, word, sentence in found]


def _footer(comparison: Comparison) -> Html:
    names = [clean(record.id, 120) for side in comparison.sides for record in side.records][:40]
    listed = [join(", " if number else "", tag("code", name)) for number, name in enumerate(names)]
    return tag("p", "Made by flatout from the records ", listed, ". This file loads nothing and sends nothing.")


def _style() -> str:
    return asset("page.css") + asset("compared.css")
