"""The top of the comparison: who the sides are, what is not equal, the verdict at a look, and what a gate said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flatout.compare import Comparison, Outcome, Pair, Side, Verdict, letter_of
from flatout.record import Record
from flatout.show import about
from flatout.show.comparison import EQUAL, crossing_text, sentence
from flatout.show.page.compared_words import SIGNS, Facing, ratio
from flatout.show.page.html import Html, hidden, join, tag
from flatout.show.safe import HARD_SPACE, clean

MOST_SIDES: Final = 26
MOST_NAMED: Final = 30
_FOLDED: Final = 4


def head(comparison: Comparison, shown: Sequence[Facing], outcomes: Sequence[Outcome]) -> Html:
    return tag(
        "header",
        tag("p", kicker(comparison), class_="kicker"),
        tag("h1", _parted(title(comparison))),
        tag("p", subtitle(comparison), class_="sub"),
        [_verdict(pair, several=len(shown) > 1) for pair in shown],
        _tiles(shown[0]) if len(shown) == 1 else None,
        [tag("p", clean(note, 1000), class_="soft cap") for note in comparison.notes[:MOST_NAMED]],
        _sides(comparison.sides),
        banner(shown[0].pair, shown[0].letter) if len(shown) == 1 else None,
        _gate(outcomes),
        class_="head", id="top",
    )  # fmt: skip


def kicker(comparison: Comparison) -> str:
    runs = sum(len(side.records) for side in comparison.sides)
    if runs == len(comparison.sides):
        return "Comparison of two runs" if runs == 2 else f"Comparison of {runs} runs"
    return f"Comparison of {len(comparison.sides)} configurations in {runs} runs"


def title(comparison: Comparison) -> str:
    """What differs stands in the title: `M on H` where both are equal, `M on H2 against H1`, `M2 against M1 on H`."""
    firsts = [side.records[0] for side in comparison.sides]
    models = list(dict.fromkeys(map(_model, firsts)))
    machines = list(dict.fromkeys(map(about.hardware_name, firsts)))
    if len(models) == 1 or len(machines) == 1:
        return f"{_against(models, 'models')} on {_against(machines, 'machines')}"
    if len(firsts) == 2:
        return " against ".join(f"{_model(r)} on {about.hardware_name(r)}" for r in reversed(firsts))
    return f"{len(models)} models on {len(machines)} machines"


def subtitle(comparison: Comparison) -> str:
    engines = list(dict.fromkeys(about.engine_name(side.records[0]) for side in comparison.sides))
    return _against(engines, "engines")


def _against(found: Sequence[str], many: str) -> str:
    """The later sides against the first, in the words of the verdict: B against A."""
    return " against ".join(reversed(found)) if len(found) <= 2 else f"{len(found)} {many}"


def _model(record: Record) -> str:
    name = about.model_name(record)
    return name.rsplit("/", 1)[-1] or name


def _parted(text: str) -> Html:
    """The title with its small words quiet. The last ` on ` parts model from machine."""
    model, on, machine = text.rpartition(" on ")
    if not on:
        return join(text)
    return join(model, " ", tag("span", "on", class_="on"), " ", machine)


def plain_sentence(pair: Pair) -> str:
    """The verdict in a sentence."""
    return sentence(pair).replace(HARD_SPACE, " ")


def _verdict(shown: Facing, *, several: bool) -> Html:
    who = f"{shown.letter} against A"
    name = tag("a", who, href=f"#{shown.letter}") if several else who
    return tag("p", name, ": ", tag("b", plain_sentence(shown.pair)), ".", class_="verdict")


def _tiles(shown: Facing) -> Html | None:
    """Counts of the verdicts on the cells' speeds, and the mean ratio: what is read before any word."""
    pair = shown.pair
    tiles = [
        tag("div", tag("dt", str(verdict)),
            tag("dd", tag("span", SIGNS[verdict], class_="sign", aria_hidden="true"), f" {count}",
                class_=f"n {_TONES[verdict]}"))
        for verdict in Verdict
        if (count := pair.count(verdict))
    ]  # fmt: skip
    doubtful = sum(pair.count(verdict, doubtful=True) for verdict in Verdict)
    if doubtful:
        tiles.append(tag("div", tag("dt", "doubtful, counted apart"), tag("dd", str(doubtful), class_="n")))
    mean = pair.mean_ratio
    if mean is not None:
        ends = f"{ratio(mean.low)}–{ratio(mean.high)}" if mean.low is not None and mean.high is not None else None
        tiles.append(
            tag("div", tag("dt", "mean B / A of decode"), tag("dd", ratio(mean.value), class_="n"),
                tag("dd", ends, class_="soft") if ends else None)
        )  # fmt: skip
    return tag("dl", tiles, class_="firsts") if tiles else None


_TONES: Final = {
    Verdict.FASTER: "t-up",
    Verdict.SLOWER: "t-down",
    Verdict.SAME: "",
    Verdict.UNKNOWN: "t-soft",
}


def _gate(outcomes: Sequence[Outcome]) -> Html | None:
    """What `--fail-if` asked, and which cells broke it."""
    if not outcomes:
        return None
    items = [_outcome(outcome) for outcome in outcomes[:MOST_NAMED]]
    left = len(outcomes) - len(items)
    more = tag("p", f"… and {left} more conditions", class_="soft") if left else None
    return tag("section", tag("h2", "Gate (--fail-if)"), tag("ul", items, class_="notes"), more, class_="gate")


def _outcome(outcome: Outcome) -> Html:
    word = tag("b", "✗ failed" if outcome.failed else "✓ passed", class_="warn" if outcome.failed else None)
    told = f"{len(outcome.broken)} broken, {len(outcome.undecided)} undecided of {outcome.checked} cells"
    if not outcome.checked:
        told = "no cell has this figure and matches: nothing was checked"
    found = [("broken", crossing) for crossing in outcome.broken] + [("undecided", c) for c in outcome.undecided]
    named = [tag("li", f"{kind}: {crossing_text(outcome, crossing)}") for kind, crossing in found[:MOST_NAMED]]
    if len(found) > MOST_NAMED:
        named.append(tag("li", f"… and {len(found) - MOST_NAMED} more"))
    folded = tag("details", tag("summary", "Which cells"), tag("ul", named, class_="notes")) if named else None
    condition = tag("code", clean(str(outcome.condition), 400))
    return tag("li", word, " ", condition, f" in {clean(outcome.side, 80)}: {told}", folded)


def _sides(sides: Sequence[Side]) -> Html:
    """The sides beside each other, one fact a row, what differs from A in bold and marked, what is equal told once."""
    chosen = sides[:MOST_SIDES]
    facts = [_facts(side) for side in chosen]
    equal = [name for name in facts[0] if name not in _OWN and len({fact[name] for fact in facts}) == 1]
    shared = " · ".join(text for name in equal if (text := facts[0][name]))
    rows = [
        tag("tr", tag("th", name, scope="row"), [_fact(fact[name], facts[0][name], name) for fact in facts])
        for name in facts[0]
        if name not in equal and any(fact[name] for fact in facts)
    ]
    if shared:
        word = "Both" if len(sides) == 2 else "All"
        rows.append(tag("tr", tag("th", word, scope="row"), tag("td", shared, colspan=len(chosen))))
    top = tag("tr", tag("td"), [tag("th", letter_of(i), scope="col") for i in range(len(chosen))])
    caption = tag("caption", "What is compared: each side's model, hardware, engine and date", class_="vh")
    table = tag("table", caption, tag("thead", top), tag("tbody", rows), class_="sides")
    left = len(sides) - len(chosen)
    more = tag("p", f"{left} more sides stand further down.", class_="soft") if left else None
    return join(tag("div", table, class_="wide", tabindex="0", role="region", aria_label="What is compared"), more)


def _fact(text: str | None, first: str | None, name: str) -> Html:
    if text != first and name not in _OWN:
        return tag("td", tag("span", "≠", class_="ne", aria_hidden="true"), hidden("differs from A: "), " ",
                   tag("b", text or "not known"))  # fmt: skip
    return tag("td", text or "—")


_OWN: Final = frozenset({"Measured", "Runs", "Cells", "From"})
"""Facts of a run, not of what it measured: they are never the same."""


def _facts(side: Side) -> dict[str, str | None]:
    first, last = side.records[0], side.records[-1]
    begun, ended = about.moment(first.started), about.moment(last.started)
    cells = about.verdict(first).replace(HARD_SPACE, " ")
    return {
        "Model": about.model_name(first),
        "Hardware": about.hardware_name(first),
        "Engine": about.engine_name(first),
        "Precision": about.precision(first),
        "Speculation": about.speculation(first),
        "Suite": clean(first.plan.suite, 80),
        "Measured": begun if begun == ended else f"{begun} to {ended}",
        "Runs": str(len(side.records)) if len(side.records) > 1 else None,
        "Cells": cells if len(side.records) == 1 else f"{cells} in the first run",
        "From": clean(side.name, 200),
    }


def banner(pair: Pair, letter: str) -> Html:
    """What is not equal besides the speed, before any number."""
    if not pair.differences and not pair.unknown:
        return tag("p", f"= {EQUAL}", class_="banner equal")
    groups = ", ".join(dict.fromkeys(d.what for d in pair.differences))
    parts: list[Html] = []
    if groups:
        rows = [
            tag("tr", tag("th", d.what if d.name in (d.what, "options") else f"{d.what}: {clean(d.name, 60)}",
                          scope="row"),
                tag("td", clean(d.a, 400)), tag("td", clean(d.b, 400)))
            for d in pair.differences[:200]
        ]  # fmt: skip
        top = tag("tr", tag("td"), tag("th", "A", scope="col"), tag("th", letter, scope="col"))
        caption = tag("caption", "What differs", class_="vh")
        table = tag("table", caption, tag("thead", top), tag("tbody", rows), class_="differ")
        parts += [
            tag("p", tag("b", "≠ Not equal: ", groups), class_="warn"),
            tag("div", table, class_="wide", tabindex="0", role="region", aria_label=f"What differs, {letter}"),
        ]
    if pair.unknown:
        items = [tag("li", clean(text, 300)) for text in pair.unknown[:200]]
        told = f"Not known to be equal: {len(pair.unknown)} {'facts' if len(items) > 1 else 'fact'}"
        listed = tag("ul", items, class_="notes")
        parts.append(tag("details", tag("summary", told), listed, open=len(items) <= _FOLDED and not groups))
    return tag("div", parts, class_="banner")
