"""What lint can say, as data: for each rule how grave it is, why it matters and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]
"""error: the figures contradict each other, so one is wrong. warning: the figure does not say what it seems to. note:
worth knowing, or said by the record itself."""


class LintError(Exception):
    """The file holds nothing that can be checked; the text says what it is instead and what to do."""


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    title: str
    severity: Severity
    why: str
    todo: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not fit. `cell`: its name, empty for the whole. `what`: the figures against each other.
    Texts may hold words from the file: they are made harmless where they are shown."""

    cell: str
    what: str
    why: str
    todo: str
    severity: Severity
    rule: str


def finding(rule: Rule, cell: str, what: str, severity: Severity | None = None) -> Finding:
    return Finding(cell, what, rule.why, rule.todo, severity or rule.severity, rule.name)


TOKENS: Final = Rule(
    "tokens",
    "Tokens against rate × time",
    "error",
    "The rate is tokens over the time of the window, so the three must agree.",
    "Ask how the window was measured: a rate over another time than the one shown (up to the last token, without the "
    "ramp) is not a sustained rate.",
)
REQUEST: Final = Rule(
    "request",
    "Per-request rate against time between tokens",
    "warning",
    "A stream's speed is the reciprocal of its time between tokens. Far apart, one of them is of other requests, or "
    "the stream paused for long in between.",
    "Look at the spread and the longest gap of the cell, and use the total rate rather than either.",
)
ACTIVE: Final = Rule(
    "active",
    "More running than asked",
    "error",
    "More requests ran on the server than the cell asked for, mostly left over from the cell before: the figures are "
    "those of a busier server than the label says.",
    "Measure the cell again on an idle server: cancel what is left and wait until nothing runs or waits.",
)
COMPLETIONS: Final = Rule(
    "completions",
    "Completed requests against tokens",
    "error",
    "So many whole answers hold more tokens than were counted, even if every stream had begun one before the window: "
    "answers were shorter than said, requests are counted that ended elsewhere, or tokens were missed.",
    "Look at the answers' real lengths and finish reasons, and count only requests that end inside the window.",
)
COMPLETIONS_BEFORE: Final = Rule(
    "completions",
    "Completed requests against tokens",
    "note",
    COMPLETIONS.why.replace(", even if every stream had begun one before the window", "")
    + " Answers begun before the window explain it too.",
    COMPLETIONS.todo,
)
ANSWERS: Final = Rule(
    "answers",
    "More tokens than the answers can hold",
    "error",
    "The answers that ended and those that still ran cannot hold so many tokens: an answer is longer than said, or "
    "other traffic was counted.",
    "Compare the tokens with the server's own counters, read when it is idle before and after.",
)
DIP: Final = Rule(
    "dip",
    "A rate that falls and returns",
    "warning",
    "With more load or shorter contexts a server gets faster or stays level. A cell that is slower than both its "
    "neighbours was most likely disturbed while it was measured.",
    "Measure the cell again, on an idle server; if it stays, it is the server's own, and worth a look.",
)
FEW: Final = Rule(
    "few",
    "Medians of fewer than five",
    "warning",
    "A median of so few requests is hardly more than one of them, and says nothing of the spread.",
    "Measure longer or with shorter answers, and give the number of requests beside each median.",
)
LABEL: Final = Rule(
    "label",
    "Labels against real prompt tokens",
    "warning",
    "The prompts were not as long as the label says, so the cell is that of another context.",
    "Fit prompts with the server's own tokenizer, or label the row with the server's count.",
)
PREFILL: Final = Rule(
    "prefill",
    "Prefill rate against TTFT",
    "warning",
    "Prompt tokens = prefill rate × TTFT of a cold prompt. If they are not the label's, the prompts were of another "
    "length (a tokenizer's estimate, template tokens left out), part of them was cached, or the two are of other "
    "requests.",
    "Take the prompt's tokens from the server's usage, less the cached ones, and give them in the table.",
)
WARM: Final = Rule(
    "warm",
    "A warm TTFT that is not",
    "warning",
    "The time to the first token of a warm context is still a good part of the cold one: prefill work is inside it, "
    "although the context was meant to be cached.",
    "Show cold and warm TTFT side by side, and the server's cached tokens; give the prefix cache more room.",
)
STREAMS: Final = Rule(
    "streams",
    "Total rate against what the streams give",
    "warning",
    "With so many streams at that speed, each waiting its TTFT between answers, another total would come out. Some "
    "streams stood still, ended early or were not there, or the medians hide two kinds of requests.",
    "Look at the requests running over time and at each stream's own speed.",
)
LIMIT: Final = Rule(
    "limit",
    "Faster than the hardware",
    "error",
    "The rate is above what the memory's bandwidth or the arithmetic allows for this model and context.",
    "Check the token counts (speculation, tokens counted twice, cached prompts), then the model's and hardware's data.",
)
NUMBER: Final = Rule(
    "number",
    "Values that cannot be",
    "error",
    "No measurement gives such a value, so its source is wrong and the figures beside it are in doubt.",
    "Go back to the raw data; write null with a reason for what was not measured.",
)
TWICE: Final = Rule(
    "twice",
    "Cells that occur twice",
    "error",
    "Two rows answer the same question, and nothing says which one counts.",
    "Keep one, or mark them as repeats.",
)
INTERVAL: Final = Rule(
    "interval",
    "Intervals and percentiles out of order",
    "error",
    "An interval holds its value and percentiles rise from p50 to the maximum: they were not computed from one set.",
    "Do not use the cell; compute it again from its samples.",
)
STATUS: Final = Rule(
    "status",
    "Status against flags and figures",
    "error",
    "The word for the cell and what stands in it say different things, so readers will take it for what it is not.",
    "Set the status from the flags; a cell without figures is not measured.",
)
WINDOW: Final = Rule(
    "window",
    "The window's own times",
    "error",
    "The length of the window is the divisor of every rate in it.",
    "Do not use the cell; measure it again.",
)
MISSING: Final = Rule(
    "missing",
    "Planned cells that are not there",
    "error",
    "Every planned cell belongs into a record, with its status: what is left out is mostly what did not work.",
    "Ask for the whole record.",
)
MANY: Final = Rule(
    "many", "More of the same", "note", "The list ends here to stay readable.", "Clear the ones above first."
)
TITLES: Final = {
    rule.name: rule.title
    for rule in (
        ACTIVE, DIP, COMPLETIONS, ANSWERS, TOKENS, REQUEST, STREAMS, PREFILL, LABEL, WARM, LIMIT, FEW, NUMBER, TWICE,
        INTERVAL, STATUS, WINDOW, MISSING, MANY,
    )
}  # fmt: skip
"""Rule → its title, in the order in which findings are shown."""
