"""What a comparison says in short words and signs, and a pair with all its cells as the page shows it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flatout.compare import CellPair, Compared, Key, Pair, Value, Verdict
from flatout.compare.figures import SHOWN, figure
from flatout.compare.pairs import cells_of, judge
from flatout.show import about, numbers
from flatout.show.comparison import NAMES, amount
from flatout.show.page import values
from flatout.show.page.html import Html, hidden, tag
from flatout.show.safe import clean

SIGNS: Final[Mapping[Verdict, str]] = {
    Verdict.FASTER: "▲", Verdict.SLOWER: "▼", Verdict.SAME: "=", Verdict.UNKNOWN: "?",
}  # fmt: skip
STEPS: Final = (1.03, 1.1, 1.3)
"""Factors at which the colour of a difference grows stronger."""
_EQUAL: Final = 1e-6
_NOTHING, _ENDLESS = 0.0005, 1e6
"""An end of an interval beyond these is no end: one side's own interval reaches 0."""
LABELS: Final[Mapping[str, str]] = {
    **NAMES, "ttft_ms.p90": "TTFT p90", "ttft_ms.p99": "TTFT p99", "itl_ms.p90": "ITL p90", "itl_ms.p99": "ITL p99",
    "tpot_ms": "TPOT p50", "tpot_ms.p99": "TPOT p99", "longest_gap_ms": "longest gap", "cold_ttft_ms": "TTFT cold",
    "acceptance.length": "acceptance length", "active_server_mean": "running on the server, mean",
    "mean_depth_tokens": "mean depth, tokens", "completed": "completed requests", "energy_j": "energy, J",
    "duration_s": "duration",
}  # fmt: skip
MORE: Final[Mapping[str, tuple[str, ...]]] = {
    "decode": (
        "ttft_ms.p90", "ttft_ms.p99", "itl_ms.p90", "itl_ms.p99", "tpot_ms", "tpot_ms.p99", "longest_gap_ms",
        "cold_ttft_ms", "acceptance.length", "active_server_mean", "mean_depth_tokens", "completed", "energy_j",
    ),
    "prefill": ("energy_j",),
    "burst": ("ttft_ms.p99", "itl_ms.p90", "itl_ms.p99", "tpot_ms", "duration_s", "completed", "energy_j"),
}  # fmt: skip
"""Figures of the full table besides those that every comparison has."""
PHASES: Final = ("decode", "prefill", "burst")
LARGEST: Final = 10**12
MOST_CELLS: Final = 2_000
"""Cells of a pair that the page shows."""


@dataclass(frozen=True, slots=True)
class Facing:
    """A pair as the page shows it. `cells`: those of both sides and those of one alone; `anchors`: where each cell's
    figures stand in the full table, by `id(cell)`; `number`: 1 for the first pair; `level`: of its headings;
    `left_out`: cells that the page does not show."""

    pair: Pair
    number: int
    cells: tuple[CellPair, ...]
    anchors: Mapping[int, str]
    level: int
    left_out: int = 0

    @property
    def letter(self) -> str:
        return self.pair.letter

    def of(self, phase: str) -> list[CellPair]:
        return [cell for cell in self.cells if cell.key.phase == phase]

    def heading(self, text: str, name: str | None = None, *, down: int = 0) -> Html:
        """A heading; `name`: its place in the page, apart from those of the other pairs."""
        return tag(f"h{min(6, self.level + down)}", text, id=None if name is None else self.place(name))

    def place(self, name: str) -> str:
        return f"{self.letter}/{name}"

    def anchor(self, cell: CellPair) -> str:
        return self.anchors[id(cell)]


def facing(pair: Pair, number: int, *, level: int) -> Facing:
    keys = (*pair.only_a, *pair.only_b)
    room = max(0, MOST_CELLS - len(pair.cells))
    alone = [_alone(pair, key) for key in keys[:room]]
    cells = (*pair.cells[:MOST_CELLS], *alone)
    anchors = {id(cell): f"{pair.letter}/{_place(cell.key, at)}" for at, cell in enumerate(cells)}
    return Facing(pair, number, cells, anchors, level, len(pair.cells) + len(keys) - len(cells))


def _place(key: Key, at: int) -> str:
    """`d/8192/4`; by number where the cell's own is no name for a place."""
    if key.tokens is None or not (0 <= key.tokens < LARGEST and 0 <= key.concurrency < LARGEST):
        return f"cell-{at}"
    return f"{key.phase[0]}/{key.tokens}/{key.concurrency}"


def _alone(pair: Pair, key: Key) -> CellPair:
    """A cell that only one side planned: its figures on that side, and no verdict."""
    a_status, b_status = (tuple(cell.status for cell in cells_of(side, key)) for side in (pair.a, pair.b))
    bare = CellPair(key, a_status, b_status, (), (), {})
    made = {name: judge(pair, [bare], figure(name))[0] for name in SHOWN[key.phase]}
    return CellPair(key, a_status, b_status, (), (), made)


def ratio(value: float | None) -> str:
    """Four digits around 1, where 2 % must show."""
    if value is None or not math.isfinite(value):
        return numbers.NONE
    if value >= 1e6:
        return "> 1M"
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


def interval(made: Compared) -> str:
    found = made.ratio
    if found is None or found.low is None or found.high is None:
        return numbers.NONE
    if found.high >= _ENDLESS:
        return f"above {ratio(found.low)}"
    return f"{ratio(found.low)}–{ratio(found.high)}" if found.low >= _NOTHING else f"below {ratio(found.high)}"


def could_show(made: Compared) -> str:
    """The smallest difference that would have been found; `—` where there is no verdict either."""
    if made.least is None:
        return numbers.NONE if made.verdict == Verdict.UNKNOWN else "nothing"
    return numbers.percent(made.least) if made.least < 10 else "over 1,000 %"


def value(name: str, found: Value | None) -> str:
    return numbers.NONE if found is None else values.short(amount(name, found.value))


def spread(found: Value | None) -> str:
    """What is known of a value's precision: ±0.4 %, or `3 runs, spread 0.8 %`."""
    if found is None:
        return numbers.NONE
    if len(found.runs) > 1:
        least = min(found.runs)
        wide = numbers.percent(max(found.runs) / least - 1) if least > 0 else numbers.NONE
        return f"{len(found.runs)} runs, spread {values.short(wide)}"
    return numbers.interval(found.value, found.low, found.high)


def why_not(made: Compared) -> str:
    """Why a figure has no verdict, or what its ratio lacks."""
    return clean(made.reason or (made.ratio.reason if made.ratio else None) or "it was not measured", 200)


def statuses(found: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(map(about.status_word, found))) or "not planned"


def shade(made: Compared) -> str:
    """The class of a verdict's colour: `up2`, `down4`, `same`, `unknown`."""
    if made.verdict == Verdict.SAME:
        return "same"
    found = made.ratio.value if made.ratio is not None else None
    if made.verdict == Verdict.UNKNOWN or found is None or not math.isfinite(found) or found <= 0:
        return "unknown"
    size = max(found, 1 / found)
    return (
        f"{'up' if made.verdict == Verdict.FASTER else 'down'}{1 + sum(size >= step * (1 - _EQUAL) for step in STEPS)}"
    )


def sign(verdict: Verdict) -> Html:
    return tag("span", SIGNS[verdict], class_="sign", aria_hidden="true")


def pill(cell: CellPair, made: Compared) -> Html:
    """A verdict in a table: sign, word and colour, never without the doubts that it stands under."""
    word = why_not(made) if made.verdict == Verdict.UNKNOWN else str(made.verdict)
    doubt = " doubt" if cell.doubts else ""
    long = " long" if made.verdict == Verdict.UNKNOWN else ""
    return tag("span", sign(made.verdict), " ", word, class_=f"pill {shade(made)}{doubt}{long}")


def remarks(cell: CellPair, made: Compared) -> str | None:
    """What stands beside a verdict: doubts always, notes where a difference is claimed."""
    if cell.doubts:
        return clean("doubtful: " + "; ".join(cell.doubts), 160)
    if cell.notes and made.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return clean("; ".join(cell.notes), 160)
    return None


def dash(made: Compared, text: str) -> Html | str:
    """The text, or a dash with the reason where it is one."""
    return values.dash(why_not(made)) if text == numbers.NONE else text


def region(content: Html, label: str, *, more: str = "") -> Html:
    """A part that may be wider than the screen: it scrolls by itself, by keyboard too."""
    return tag("div", content, class_=f"wide {more}".strip(), tabindex="0", role="region", aria_label=label)


def spoken(parts: Iterable[str]) -> Html:
    return hidden("; ".join(part for part in parts if part))
