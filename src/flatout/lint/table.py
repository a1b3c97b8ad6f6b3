"""A published page's table as CSV or JSON: columns by their usual names, numbers as people write them."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flatout.lint import finding as f
from flatout.lint.finding import Finding, LintError, finding
from flatout.lint.sheet import K, Row, Sheet, cell_id, cell_name, whole

MOST_ROWS: Final = 100_000
MAX_BYTES: Final = 64 * 1024 * 1024
_LONGEST: Final = 200  # characters of one value that are looked at
_LISTS: Final = ("cells", "rows", "results", "measurements", "data")
_NONE: Final = frozenset({"", "-", "—", "–", "null", "none", "n/a", "na", "nan?", "not run"})

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "phase": ("phase", "test", "kind"),
    "label": ("context", "contextlabel", "contextlength", "label"),
    "tokens": ("contexttokens",),
    "concurrency": ("concurrency", "requestsatonce", "simultaneousrequests", "atonce", "streams", "users"),
    "status": ("status",),
    "rate_tok_s": ("totaltoks", "toks", "tokss", "tokenspersecond", "totaltokens", "throughput", "outputthroughput"),
    "prefill_tok_s": ("prefilltoks",),
    "per_request_tok_s": ("perrequesttoks", "perrequest", "peruser", "perusertoks"),
    "ttft_ms": ("ttftms", "ttft", "ttftp50ms", "ttftp50", "medianttftms", "timetofirsttoken"),
    "itl_ms": ("itlms", "itl", "itlp50ms", "itlp50", "timebetweentokens", "timebetweentokensms", "medianitlms"),
    "tpot_ms": ("tpotms", "tpot", "tpotp50ms", "mediantpotms"),
    "active": ("averageactive", "averageactiverequests", "active", "activeservermean"),
    "completed": ("completed", "completedrequests"),
    "output_tokens": ("outputtokens",),
    "window_s": ("measureds", "measuredfor", "windows", "durations", "duration"),
    "prompt": ("prompttokens",),
    "cached_tokens": ("cachedtokens", "cachedtokensmean"),
    "cold_ttft_ms": ("coldttftms", "ttftcold", "ttftcoldms"),
    "max_output": ("maxoutput", "maxoutputtokens"),
}
"""Field → the names that its column may have, in lower case and without anything but letters and digits."""
_FIELD: Final = {alias: name for name, aliases in NAMES.items() for alias in aliases}
_TEXTS: Final = ("phase", "label", "status")
_FINEST: Final = {"window_s": 0.1, "itl_ms": 0.1, "tpot_ms": 0.1, "active": 0.1, "ttft_ms": 1.0, "cold_ttft_ms": 1.0}
"""The coarsest step that a column is taken to be rounded to: a 30 in it may be 30.0."""
_NUMBER: Final = re.compile(
    r"(?P<number>[+-]?(?:\d{1,3}(?:[,\u202f\u00a0 ]\d{3})+|\d{1,20})(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"
    r"\s*(?P<scale>(?:[kg]|m(?!s))?)\s*(?P<unit>ms|s|sec|seconds|µs|us|tok/s|t/s|tokens|tok|%)?"
)
_SIZE: Final = re.compile(r"(\d{1,10}(?:\.\d{1,4})?)\s*([km]?)")


@dataclass(frozen=True, slots=True)
class Number:
    """A value and half of the step that its last digit stands for."""

    value: float
    half: float


def is_record(path: Path) -> bool:
    """Whether a file says that it is a flatout record, whatever its state: then it is to be read as one."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return re.search(rb'"format"\s*:\s*"flatout-record', head) is not None


def read_table(path: Path) -> Sheet:
    """Rows of a CSV, TSV or JSON file. Raises LintError: not there, too large, no table, no known columns."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LintError(f"{path} is larger than {MAX_BYTES // 2**20} MiB: that is no table of a page")
        data = path.read_bytes()
    except OSError as error:
        raise LintError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_table(data, str(path))


def parse_table(data: bytes, name: str = "the file") -> Sheet:
    """As `read_table`, from bytes."""
    if b"\0" in data:
        raise LintError(f"{name} is not text; give the table as CSV or JSON")
    text = data.decode("utf-8-sig", "replace").strip()
    if not text:
        raise LintError(f"{name} is empty")
    rows, head = _json_rows(text, name) if text[0] in "[{" else (_csv_rows(text, name), {})
    if len(rows) > MOST_ROWS:
        raise LintError(f"{name} has {len(rows):,} rows; at most {MOST_ROWS:,} are checked")
    return _sheet(rows, head, name)


def _json_rows(text: str, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LintError(f"{name} is not JSON, or cut off: {str(error)[:200]}") from error
    head = content if isinstance(content, dict) else {}
    if isinstance(content, dict):
        content = next((content[key] for key in _LISTS if isinstance(content.get(key), list)), None)
    if not isinstance(content, list) or not content or not all(isinstance(row, dict) for row in content):
        raise LintError(f"{name} holds no table: a list of objects is wanted, or an object with one under 'cells'")
    return content, head


def _csv_rows(text: str, name: str) -> list[dict[str, Any]]:
    first = text.splitlines()[0]
    mark = max(",;\t|", key=first.count)
    rows: list[dict[str, Any]] = []
    try:
        lines = csv.reader(text.splitlines(), delimiter=mark, skipinitialspace=True)
        columns = next(lines)
        for line in lines:
            if any(part.strip(" -:") for part in line):  # neither empty nor a Markdown rule
                rows.append(dict(zip(columns, line, strict=False)))
            if len(rows) > MOST_ROWS:
                break
    except csv.Error as error:
        raise LintError(f"{name} is no CSV: {error}") from error
    return rows


def _sheet(rows: list[dict[str, Any]], head: dict[str, Any], name: str) -> Sheet:
    fields = {column: known for row in rows for column in row if (known := _known(column)) is not None}
    have = set(fields.values())
    if not have & {"label", "tokens"} or not have & {"rate_tok_s", "prefill_tok_s", "ttft_ms"}:
        seen = ", ".join(str(c)[:30] for c in list(rows[0])[:12]) if rows else "none"
        raise LintError(
            f"{name} has no column for the context, or none for a rate or TTFT (columns: {seen}); name them context, "
            "concurrency, total_tok_s, ttft_ms, itl_ms, average_active, completed, output_tokens, measured_s"
        )
    longest = _max_output(head)
    made: list[Row] = []
    found: list[Finding] = []
    for number, row in enumerate(rows, start=1):
        one = _row({fields[c]: v for c, v in row.items() if c in fields}, longest, number, found)
        if one is not None:
            made.append(one)
    return Sheet("table", tuple(made), findings=tuple(found))


def _known(column: object) -> str | None:
    """The field of a column's name; units in brackets and signs do not matter."""
    return _FIELD.get(re.sub(r"[^a-z0-9]", "", str(column)[:_LONGEST].lower())) if column is not None else None


def _max_output(head: Mapping[str, Any]) -> Number | None:
    run = head.get("run")
    for place in (run if isinstance(run, dict) else {}, head):
        for key, value in place.items():
            if _known(key) == "max_output":
                return number(value)
    return None


def number(value: object, name: str = "") -> Number | None:
    """`37.1K`, `2,325 ms`, `1.2 s`, `454.2` → a Number, in ms for fields that end in `_ms`; None for what is none.

    NaN and infinity come out as they are, for `numbers that cannot be`.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        try:
            made = float(value)
        except OverflowError:
            return Number(math.inf, 0.0)
        return Number(made, _half(made, repr(value), name)) if math.isfinite(made) else Number(made, 0.0)
    text = str(value)[:_LONGEST].strip().lower()
    found = _NUMBER.fullmatch(text)
    if found is None:
        return Number(math.nan, 0.0) if text in ("nan", "inf", "-inf", "infinity") else None
    digits = re.sub(r"[,\u202f\u00a0 ]", "", found["number"])
    scale = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}[found["scale"]]
    if name.endswith("_ms"):
        scale *= {"s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "µs": 1e-3}.get(found["unit"] or "", 1.0)
    made = float(digits) * scale
    return Number(made, _half(float(digits), digits, name, scale) * scale) if math.isfinite(made) else Number(made, 0.0)


def _half(value: float, text: str, name: str, scale: float = 1.0) -> float:
    """Half a step of the last digit. Zeros at the end of a large whole number may be rounding: 37100 is 37.1K."""
    decimals = len(text.partition(".")[2].rstrip("0")) if "e" not in text else 6
    step = 10.0**-decimals
    if not decimals and abs(value) >= 10_000 and math.isfinite(value) and name.endswith("_tok_s"):
        while value % (step * 10) == 0 and step * 10 <= abs(value) / 100:
            step *= 10
    return min(step, _FINEST[name] / scale if name in _FINEST else step) / 2


def _row(values: Mapping[str, Any], longest: Number | None, at: int, found: list[Finding]) -> Row | None:
    text = {name: str(values.get(name) or "")[:_LONGEST].strip() for name in _TEXTS}
    phase = next((p for p in ("prefill", "burst") if p in text["phase"].lower()), "decode")
    got = {name: number(v, name) for name, v in values.items() if name not in _TEXTS}
    label, tokens = _context(text["label"], got.get("tokens"))
    count = got.get("concurrency")
    concurrency = whole(count.value) if count is not None and math.isfinite(count.value) else 1
    where = cell_name(phase, label, concurrency)
    for name, made in list(got.items()):
        if made is not None and not math.isfinite(made.value):
            found.append(finding(f.NUMBER, where, f"{name} is {made.value}"))
            got[name] = None
        elif made is None and _told(values[name]):
            found.append(finding(f.NUMBER, where, f"{name} is {str(values[name])[:40]!r}: no number", "warning"))
    if not label or (count is None and phase == "decode"):
        found.append(finding(f.NUMBER, "", f"row {at} has no context or no number of requests: left out", "warning"))
        return None
    if phase == "prefill" and got.get("prefill_tok_s") is not None:
        got["rate_tok_s"] = got["prefill_tok_s"]
    return _made(phase, label, tokens, concurrency, _status(text["status"], got), got, longest, where)


def _told(value: object) -> bool:
    """Something is written there that ought to be a number."""
    return value is not None and str(value)[:_LONGEST].strip().lower() not in _NONE


def _made(
    phase: str,
    label: str,
    tokens: int | None,
    concurrency: int,
    status: str,
    got: Mapping[str, Number | None],
    longest: Number | None,
    where: str,
) -> Row:
    def take(name: str) -> float | None:
        one = got.get(name)
        return one.value if one is not None else None

    prompt = take("prompt")
    return Row(
        cell_id(phase, tokens, label, concurrency), where, phase, label, tokens, concurrency, status,
        rate_tok_s=take("rate_tok_s"), per_request_tok_s=take("per_request_tok_s"), ttft_ms=take("ttft_ms"),
        itl_ms=take("itl_ms"), tpot_ms=take("tpot_ms"), active=take("active"), completed=take("completed"),
        output_tokens=take("output_tokens"), window_s=take("window_s"), cached_tokens=take("cached_tokens"),
        prompt_tokens=(whole(prompt), whole(prompt)) if prompt is not None else None,
        cold_ttft_ms=take("cold_ttft_ms"),
        max_output=take("max_output") or (longest.value if longest is not None and phase != "prefill" else None),
        halves={name: one.half for name, one in got.items() if one is not None},
    )  # fmt: skip


def _context(label: str, tokens: Number | None) -> tuple[str, int | None]:
    """A context's label and tokens, each from the other where it is missing; K = 1024."""
    length = whole(tokens.value) if tokens is not None and math.isfinite(tokens.value) else None
    if length is None:
        found = _SIZE.fullmatch(label.lower().removesuffix("context").strip())
        length = round(float(found[1]) * {"": 1, "k": K, "m": K * K}[found[2]]) if found else None
    if not label and length is not None:
        label = f"{length // K}K" if length >= K and length % K == 0 else f"{length:,}"
    return label, length


def _status(text: str, got: Mapping[str, Number | None]) -> str:
    """As flatout writes it; a row without a status is measured if it has a rate."""
    if text:
        return text.lower().replace(" ", "_")
    return "valid" if any(got.get(name) is not None for name in ("rate_tok_s", "ttft_ms")) else "not_run"
