"""The cells of a run in order, each with its verdict beforehand. Pure: limits and a suite in, cells out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from flatout.suite import Context, K, Suite, label

SPARE: Final = 64
"""Tokens kept free at the model's full length: templates and stop tokens differ by a few."""

Phase = Literal["prefill", "decode", "burst"]
Verdict = Literal["measure", "over_length", "over_capacity", "not_run"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes, in tokens and requests; None where it is not known. See `engines.base.Room`."""

    model_length: int | None = None
    kv_tokens: int | None = None
    max_running: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One cell. `context_tokens` is the whole prompt, template included; None if `max`/`full` could not be resolved.

    `need_tokens`: KV room that the cell takes at its fullest. `will_queue`: more streams than the server runs at once.
    `reason`: why it is not measured, a sentence; None where it is.
    """

    id: str
    phase: Phase
    context: Context
    context_tokens: int | None
    label: str
    concurrency: int
    max_output: int
    need_tokens: int | None
    verdict: Verdict
    reason: str | None = None
    will_queue: bool = False


def resolve(context: Context, limits: Limits, max_output: int) -> int | None:
    """Tokens of a context. `max` = (length - output - 64) rounded down to 1k; `full` = length - 64.

    None if the model's length is not known or nothing is left of it.
    """
    if isinstance(context, int):
        return context
    if limits.model_length is None:
        return None
    if context == "full":
        left = limits.model_length - SPARE
    else:
        left = limits.model_length - max_output - SPARE
        left -= left % K
    return left if left > 0 else None


def need(context_tokens: int, concurrency: int, max_output: int, *, shared: bool) -> int:
    """KV tokens of a cell at its fullest: streams x (context + output), or context + streams x output if shared."""
    if shared:
        return context_tokens + concurrency * max_output
    return concurrency * (context_tokens + max_output)


def plan(suite: Suite, limits: Limits, *, max_concurrency: int | None = None) -> list[PlannedCell]:
    """All cells: for each context in ascending order its prefill cell, then its decode row by concurrency.

    A context is worked off as a whole, so that what was sent cold for prefill is then warm for the row.
    """
    rows: dict[Context, tuple[bool, bool]] = {}
    for context in (*suite.prefill, *suite.decode):
        rows[context] = (context in suite.prefill, context in suite.decode)
    cells: list[PlannedCell] = []
    for context in sorted(rows, key=lambda c: _rank(c, limits, suite)):
        in_prefill, in_decode = rows[context]
        if in_prefill:
            cells.append(_cell("prefill", context, 1, suite, limits, max_concurrency))
        if in_decode:
            cells += [_cell("decode", context, n, suite, limits, max_concurrency) for n in suite.concurrency]
    return _without_twins(cells)


def plan_bursts(suite: Suite, limits: Limits, requests: int) -> list[PlannedCell]:
    """One cell a context: `requests` prompts of their own. What the server cannot hold at once waits in its queue, so
    only a request that is too long by itself is not sent."""
    cells = []
    for context in suite.decode or suite.prefill:
        tokens = resolve(context, limits, suite.max_output)
        alone = None if tokens is None else need(tokens, 1, suite.max_output, shared=False)
        verdict, reason = verdict_of(tokens, 1, suite.max_output, alone, limits, context=context)
        cells.append(
            PlannedCell(
                id=f"b/{tokens if tokens is not None else context}/{requests}",
                phase="burst",
                context=context,
                context_tokens=tokens,
                label=label(tokens, context),
                concurrency=requests,
                max_output=suite.max_output,
                need_tokens=None if tokens is None else need(tokens, requests, suite.max_output, shared=False),
                verdict=verdict,
                reason=reason,
                will_queue=limits.max_running is not None and requests > limits.max_running,
            )
        )
    return cells


def _rank(context: Context, limits: Limits, suite: Suite) -> tuple[float, int]:
    tokens = resolve(context, limits, suite.max_output)
    order = {"max": 1, "full": 2}.get(str(context), 0)
    return (float("inf") if tokens is None else tokens, order)


def _without_twins(cells: list[PlannedCell]) -> list[PlannedCell]:
    """`max` may come out as a length that is listed anyway: the second of two equal cells goes."""
    seen: set[tuple[str, int, int]] = set()
    kept = []
    for cell in cells:
        key = (cell.phase, cell.context_tokens or -1, cell.concurrency)
        if cell.context_tokens is None or key not in seen:
            kept.append(cell)
        seen.add(key)
    return kept


def _cell(
    phase: Literal["prefill", "decode"],
    context: Context,
    concurrency: int,
    suite: Suite,
    limits: Limits,
    max_concurrency: int | None,
) -> PlannedCell:
    tokens = resolve(context, limits, suite.max_output)
    output = suite.max_output if phase == "decode" else 1
    shared = suite.prompts == "shared"
    needed = None if tokens is None else need(tokens, concurrency, output, shared=shared)
    verdict, reason = verdict_of(tokens, concurrency, output, needed, limits, context=context, shared=shared)
    queue = limits.max_running is not None and concurrency > limits.max_running
    if verdict == "measure" and max_concurrency is not None and concurrency > max_concurrency:
        verdict, reason = "not_run", f"above the limit of {max_concurrency} simultaneous requests given for this run"
    if verdict == "measure" and queue and suite.skip_queued:
        verdict = "not_run"
        reason = f"the server runs {limits.max_running} requests at once and the suite skips cells that would queue"
    return PlannedCell(
        id=f"{'p' if phase == 'prefill' else 'd'}/{tokens if tokens is not None else context}"
        + (f"/{concurrency}" if phase == "decode" else ""),
        phase=phase,
        context=context,
        context_tokens=tokens,
        label=label(tokens, context),
        concurrency=concurrency,
        max_output=output,
        need_tokens=needed,
        verdict=verdict,
        reason=reason,
        will_queue=queue and verdict == "measure",
    )


def verdict_of(
    tokens: int | None,
    concurrency: int,
    output: int,
    needed: int | None,
    limits: Limits,
    *,
    context: Context,
    shared: bool = False,
) -> tuple[Verdict, str | None]:
    """The verdict beforehand: over length, then over capacity (docs/definitions.md, "Room"); queueing is no reason not
    to run."""
    if tokens is None or needed is None:
        if limits.model_length is None:
            return "not_run", f"'{context}' needs the model's length, which the server does not tell; give --model-len"
        return "over_length", f"the model's length of {limits.model_length:,} tokens leaves no room for '{context}'"
    if limits.model_length is not None and tokens + output > limits.model_length:
        return "over_length", (
            f"{tokens:,} tokens of prompt and {output:,} of output exceed the server's limit of "
            f"{limits.model_length:,} tokens for one request"
        )
    if limits.kv_tokens is not None and needed > limits.kv_tokens:
        sum_ = (
            f"{tokens:,} + {concurrency:,} × {output:,}" if shared else f"{concurrency:,} × ({tokens:,} + {output:,})"
        )
        return (
            "over_capacity",
            f"{sum_} = {needed:,} tokens of KV cache are needed; the server holds {limits.kv_tokens:,}",
        )
    return "measure", None


def within(cells: list[PlannedCell], most_streams: int | None) -> list[PlannedCell]:
    """The same cells, without those that need more connections than this machine may open (None: no limit): told
    beforehand, they cost no warming."""
    return [
        replace(cell, verdict="not_run", reason=_too_many(cell.concurrency, most_streams), will_queue=False)
        if cell.verdict == "measure" and most_streams is not None and cell.concurrency > most_streams
        else cell
        for cell in cells
    ]


def _too_many(streams: int, most: int) -> str:
    return (
        f"this machine's limit of open files allows {most:,} simultaneous requests, not {streams:,}: raise it "
        "(`ulimit -Hn`), or ask for fewer"
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """The least that a run sends, and how long its windows last at most.

    `cold_tokens`: prompt tokens that the server computes (each context once, the warm-up's too). `cached_tokens`:
    prompt tokens that come from its cache: each context is sent once more, and by each stream at each launch.
    `output_tokens`: one answer a stream and cell, half as long in the mean (the first round's lengths are spread). A
    stream asks again as soon as it is answered until its window ends, so a fast server is sent more.
    """

    cells: int
    measured: int
    window_s: float
    cold_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        return self.cold_tokens + self.cached_tokens + self.output_tokens


def estimate(cells: list[PlannedCell], suite: Suite) -> Estimate:
    """See Estimate."""
    measured = [c for c in cells if c.verdict == "measure"]
    contexts: dict[int, int] = {}
    launches = outputs = 0
    for cell in measured:
        tokens = cell.context_tokens or 0
        wanted = suite.prefill_samples if cell.phase == "prefill" else cell.concurrency
        if suite.prompts == "shared" and cell.phase == "decode":
            wanted = 1
        contexts[tokens] = max(contexts.get(tokens, 0), wanted)
        if cell.phase == "decode":
            launches += tokens * cell.concurrency
        if cell.phase != "prefill":
            outputs += (
                cell.concurrency * cell.max_output // (2 if cell.phase == "decode" and cell.concurrency > 1 else 1)
            )
    most = max((c.concurrency for c in measured if c.phase == "decode"), default=0)
    warm_up = (most + 1) * min(contexts, default=0) + max(contexts, default=0)
    cold = sum(tokens * count for tokens, count in contexts.items()) + warm_up
    return Estimate(
        cells=len(cells),
        measured=len(measured),
        window_s=sum(suite.time_s for c in measured if c.phase == "decode"),
        cold_tokens=cold,
        cached_tokens=launches + max(contexts, default=0),
        output_tokens=outputs,
    )
