"""The house as the code has it: which file imports which, and how much code each room holds.

`python -m tests.house` prints the sizes beside those that docs/architecture.md sets. A line counts if it holds a token
of code: blank lines, comments and docstrings do not.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "flatout"

ROOMS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "metrics.py": (("metrics",), 300),
    "record, plan, suite, flags, calibration": (("record", "plan", "suite", "flags", "calibration"), 1_000),
    "protocol.py, net.py": (("protocol", "net"), 400),
    "load/": (("load",), 2_700),
    "measure/": (("measure",), 2_100),
    "run/": (("run",), 2_200),
    "engines/": (("engines",), 2_900),
    "host/, prompts/": (("host", "prompts"), 1_700),
    "compare/, lint/, limits/": (("compare", "lint", "limits"), 2_800),
    "show/": (("show",), 3_600),
    "rig/, calibrate/": (("rig", "calibrate"), 3_500),
    "demo/, publish/, cli/": (("demo", "publish", "cli"), 1_800),
    "site/": (("site",), 6_500),
}
"""Rooms that stand in one line of docs/architecture.md, and the most lines of code they should hold together."""

TOTAL: Final = 31_500


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("flatout", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def room(name: str) -> str:
    """The room of a module: `flatout.load.reader` stands in `load`."""
    return [*name.split("."), ""][1]


def imports(path: Path, known: set[str]) -> set[str]:
    """Modules of flatout that a file imports anywhere in it: at the top, in a function, or for types alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return (found & known) - {module(path)}


def graph() -> dict[str, set[str]]:
    known = {module(path) for path in files()}
    return {module(path): imports(path, known) for path in files()}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other (Tarjan's strongly connected components of more than one)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(arrows[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            members = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(members) > 1:
                found.append(sorted(members))

    for name in sorted(arrows):
        if name not in order:
            visit(name)
    return found


def code_lines(text: str) -> int:
    spans: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            spans |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(set(_token_lines(text)) - spans)


def _token_lines(text: str) -> Iterator[int]:
    silent = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            yield from range(token.start[0], token.end[0] + 1)


def sizes() -> dict[str, tuple[int, int]]:
    """(lines of code, files) of each line of ROOMS, and of `all`."""
    counted = [(room(module(path)), code_lines(path.read_text(encoding="utf-8"))) for path in files()]
    table = {
        line: (sum(n for name, n in counted if name in names), sum(name in names for name, _ in counted))
        for line, (names, _) in ROOMS.items()
    }
    return {**table, "all": (sum(n for _, n in counted), len(counted))}


def main() -> None:
    print(f"{'room':42} {'code':>7} {'at most':>8} {'files':>6}")
    for line, (code, count) in sizes().items():
        most = TOTAL if line == "all" else ROOMS[line][1]
        print(f"{line:42} {code:7,} {most:8,} {count:6}")


if __name__ == "__main__":
    main()
