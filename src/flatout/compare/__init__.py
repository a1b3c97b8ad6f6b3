"""Two records or more, cell by cell: how much faster or slower, and whether these runs can tell.

Files: `ratio` the statistics, `figures` what a cell has, `configuration` what differs, `pairs` the comparison,
`conditions` the gate, `sides` records from paths, `result` the values.
"""

from flatout.compare.conditions import Condition, Crossing, Outcome, check, fail_if
from flatout.compare.configuration import launch_options
from flatout.compare.pairs import compare
from flatout.compare.result import (
    CellPair,
    Compared,
    CompareError,
    Comparison,
    Difference,
    Key,
    Pair,
    Side,
    Value,
    Verdict,
    letter_of,
)
from flatout.compare.sides import read_sides

__all__ = [
    "CellPair",
    "CompareError",
    "Compared",
    "Comparison",
    "Condition",
    "Crossing",
    "Difference",
    "Key",
    "Outcome",
    "Pair",
    "Side",
    "Value",
    "Verdict",
    "check",
    "compare",
    "fail_if",
    "launch_options",
    "letter_of",
    "read_sides",
]
