"""Each cell of a record (or of a published page's table) against the hardware's limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flatout.flags import MEASURED, Status
from flatout.limits.hardware import HardwareLimits
from flatout.limits.roofline import Binding, CellLimit, Load, limit, solve
from flatout.limits.shape import ModelShape
from flatout.record import Cell, Fact, Rate, Record

SPARED_BYTES: Final = 256 * 1024**2
"""Weights that a large on-chip cache could keep from step to step (AMD's Infinity Cache on MI300X: 256 MB)."""
BANDWIDTH_SLACK: Final = 1.05
COMPUTE_SLACK: Final = 1.15
"""Real memory and clocks may run above what the datasheet counts with."""
LEAST_KV_BYTES: Final = 0.5
LEAST_STATE_BYTES: Final = 2.0
"""The narrowest cache that engines offer (4 bits), where the record does not say which one the server had."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the limit needs beside shape and hardware. `gpus`: all that may work, for what cannot be passed at all
    (None: `tensor_parallel`). `acceptance_length`: for cells that do not tell their own. `draft_tokens`: drafted a
    step. `shared_context`: True where all streams share one context, False where each has its own, None where that is
    not known."""

    tensor_parallel: int = 1
    gpus: int | None = None
    kv_bytes: float | None = None
    acceptance_length: float | None = None
    speculative: bool = False
    draft_tokens: int | None = None
    shared_context: bool | None = False


@dataclass(frozen=True, slots=True)
class Point:
    """One cell's load and what was measured. `running`: how many really ran. `depth_tokens`: mean context a stream
    had; None: not known. `low_tok_s`: the lower end of the measured rate's interval."""

    id: str
    phase: str
    context: str
    context_tokens: int | None
    concurrency: int
    status: str
    running: float | None = None
    depth_tokens: float | None = None
    measured_tok_s: float | None = None
    low_tok_s: float | None = None
    acceptance_length: float | None = None


@dataclass(frozen=True, slots=True)
class CellReach:
    """One cell against its limit. `limit_tok_s`: of the cell's own phase. `share`: measured / limit. Where speculative
    decoding ran but nothing tells how many tokens it accepted, the limit is that of one token a step, and
    `least_acceptance` is the acceptance length that the measured speed proves (1 where it proves nothing). `note`: what
    a reader must know; `reason`: why there is no limit or no share."""

    point: Point
    limit: CellLimit | None
    limit_tok_s: float | None
    binding: Binding | None
    share: float | None
    acceptance_length: float | None
    least_acceptance: float | None
    note: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LimitReport:
    """All cells, with what they were held against. `assumptions`: sentences to be shown beside the table."""

    shape: ModelShape
    hardware: HardwareLimits
    settings: Settings
    cells: tuple[CellReach, ...]
    assumptions: tuple[str, ...]

    def by_id(self) -> dict[str, CellReach]:
        return {reach.point.id: reach for reach in self.cells}


@dataclass(frozen=True, slots=True)
class Above:
    """A speed that the hardware cannot reach however the server works: `measured_tok_s` (its interval's lower end)
    over `ceiling_tok_s`, the limit with every doubt in the speed's favour."""

    point: Point
    measured_tok_s: float
    ceiling_tok_s: float
    why: str
    advice: str


def limits_of(
    record: Record, shape: ModelShape, hardware: HardwareLimits, settings: Settings | None = None
) -> LimitReport:
    """Every planned cell of a record against the limit. `settings`: None takes them from the record."""
    chosen = settings_of(record) if settings is None else settings
    return report(points_of_record(record), shape, hardware, chosen)


def limits_of_page(
    page: Mapping[str, Any], shape: ModelShape, hardware: HardwareLimits, settings: Settings | None = None
) -> LimitReport:
    """The same for a published page's table as data: `cells` with phase, context_label, context_tokens, concurrency,
    status, total_tok_s, average_active. Raises ValueError where that is not what it holds."""
    return report(points_of_page(page), shape, hardware, settings or Settings(shared_context=None))


def limits_for(
    shape: ModelShape,
    hardware: HardwareLimits,
    contexts: Sequence[int],
    concurrency: Sequence[int],
    settings: Settings | None = None,
) -> LimitReport:
    """Limits without a measurement: for each context a prefill cell, and a decode cell for each number of streams."""
    points = [Point(f"p/{tokens}", "prefill", "", tokens, 1, "", running=1.0) for tokens in contexts]
    for tokens in contexts:
        depth = float(tokens)
        points += [Point(f"d/{tokens}/{n}", "decode", "", tokens, n, "", float(n), depth) for n in concurrency]
    return report(points, shape, hardware, settings or Settings())


def report(points: Iterable[Point], shape: ModelShape, hardware: HardwareLimits, settings: Settings) -> LimitReport:
    cells = tuple(reach(point, shape, hardware, settings) for point in points)
    return LimitReport(shape, hardware, settings, cells, _assumptions(shape, hardware, settings, cells))


def settings_of(record: Record) -> Settings:
    """Tensor parallel, cache type and speculation as the record tells them."""
    command = record.engine.launch_command.value
    words = str(command).split() if command is not None else []
    method = record.engine.speculative_method.value
    speculative = isinstance(method, str) and method.lower() not in ("", "none")
    draft = record.engine.draft_length.value
    tensor = _count(words, "--tp", "--tp-size", "--tensor-parallel-size", "-tp")
    others = _count(words, "--dp", "--dp-size", "--data-parallel-size", "-dp")
    others *= _count(words, "--pp", "--pp-size", "--pipeline-parallel-size", "-pp")
    present = record.hardware.facts.get("gpu_count", Fact()).value
    return Settings(
        tensor_parallel=tensor,
        gpus=max(tensor * others, int(present) if isinstance(present, int | float) and 0 < present <= 4096 else 1),
        kv_bytes=_kv_bytes(words),
        speculative=speculative,
        draft_tokens=int(draft) if speculative and isinstance(draft, int | float) and 0 < draft < 1e4 else None,
        shared_context={"own": False, "shared": True}.get(record.prompts.mode),
    )


def _option(words: Sequence[str], *names: str) -> str | None:
    """The value of the last `--name value` or `--name=value`."""
    found = None
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else (words[i + 1] if i + 1 < len(words) else None)
    return found.strip("\"'") if found else None


def _count(words: Sequence[str], *names: str) -> int:
    text = _option(words, *names)
    return int(text) if text and text.isascii() and text.isdigit() and 0 < int(text) <= 1024 else 1


def _kv_bytes(words: Sequence[str]) -> float | None:
    text = (_option(words, "--kv-cache-dtype") or "").lower()
    if text.startswith(("fp8", "int8")):
        return 1.0
    if text in ("bf16", "bfloat16", "fp16", "float16", "half"):
        return 2.0
    keys, values = (_option(words, f"--cache-type-{part}", f"-ct{part}") for part in "kv")
    sizes = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 0.75, "q5_0": 22 / 32, "q4_1": 0.625}
    sizes |= {"q4_0": 18 / 32, "iq4_nl": 18 / 32}
    if keys is None and values is None:
        return None
    found = [sizes.get((part or "f16").lower()) for part in (keys, values)]
    return None if None in found else sum(part for part in found if part is not None) / 2


def points_of_record(record: Record) -> list[Point]:
    return [_point(cell, record.room.max_running) for cell in record.cells]


def _point(cell: Cell, max_running: Fact) -> Point:
    measured = cell.status in MEASURED
    rate: Rate | None = None
    depth = acceptance = active = None
    if cell.decode is not None and measured:
        rate, depth, active = cell.decode.total_tok_s, cell.decode.mean_depth_tokens, cell.decode.active_server_mean
        acceptance = cell.decode.acceptance.length if cell.decode.acceptance else None
    elif cell.prefill is not None and measured:
        rate = cell.prefill.prefill_tok_s
    elif cell.burst is not None and measured:
        rate = cell.burst.end_to_end_tok_s
    running = float(cell.concurrency)
    if isinstance(max_running.value, int | float) and max_running.value >= 1:
        running = min(running, float(max_running.value))
    if cell.status == Status.REQUESTS_QUEUED and active is not None and active >= 1:
        running = min(running, active)
    return Point(
        cell.id, cell.phase, cell.context, cell.context_tokens, cell.concurrency, cell.status, running=running,
        depth_tokens=depth, measured_tok_s=rate.value if rate else None, acceptance_length=acceptance,
        low_tok_s=(rate.low if rate.low is not None else rate.value) if rate else None,
    )  # fmt: skip


def points_of_page(page: Mapping[str, Any]) -> list[Point]:
    """Cells of a published table (`cells`, and `run.max_running_requests` where it is told). Raises ValueError where a
    row is not what it should be."""
    rows = page.get("cells")
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise ValueError("the page has no list 'cells'")
    run = page.get("run")
    most = run.get("max_running_requests") if isinstance(run, Mapping) else None
    limit_running = float(most) if isinstance(most, int | float) and 1 <= most < math.inf else math.inf
    return [_page_point(row, i, limit_running) for i, row in enumerate(rows)]


def _page_point(row: Any, index: int, max_running: float) -> Point:
    if not isinstance(row, Mapping):
        raise ValueError(f"cell {index} of the page is not a table of values")
    tokens, streams = _page_number(row, "context_tokens", index), _page_number(row, "concurrency", index)
    if streams is None or streams < 1:
        raise ValueError(f"cell {index} of the page has no concurrency")
    phase, status = str(row.get("phase", "decode"))[:20], str(row.get("status", ""))[:60]
    measured, active = _page_number(row, "total_tok_s", index), _page_number(row, "average_active", index)
    running = min(streams, max_running)
    if status == Status.REQUESTS_QUEUED and active is not None and active >= 1:
        running = min(running, active)
    short = {"prefill": "p", "decode": "d", "burst": "b"}.get(phase, phase)
    name = f"{short}/{'' if tokens is None else int(tokens)}" + ("" if phase == "prefill" else f"/{int(streams)}")
    return Point(
        name, phase, str(row.get("context_label") or "")[:20], None if tokens is None else int(tokens), int(streams),
        status, running=running, measured_tok_s=measured, low_tok_s=measured,
    )  # fmt: skip


def _page_number(row: Mapping[str, Any], key: str, index: int) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"cell {index} of the page: {key} is {str(value)[:40]!r}, not a number from 0 up")
    return float(value)


def reach(point: Point, shape: ModelShape, hardware: HardwareLimits, settings: Settings) -> CellReach:
    """One cell against its limit."""
    if point.context_tokens is None:
        return _without(point, "the cell's context has no length")
    if point.phase == "burst":
        return _without(point, "a burst is prefill and decode mixed; neither limit is its own")
    streams = point.running if point.running is not None else float(point.concurrency)
    accepted = point.acceptance_length if point.acceptance_length is not None else settings.acceptance_length
    found = _limit(point, shape, hardware, settings, streams, accepted, settings.shared_context is True)
    if point.phase == "prefill":
        return _prefill_reach(point, found)
    share = _share(point.measured_tok_s, found.decode_tok_s)
    unknown = settings.speculative and accepted is None
    least = note = None
    if unknown and point.measured_tok_s is not None:
        least, note = _least_acceptance(point, shape, hardware, settings, streams, found)
    return CellReach(
        point, found, found.decode_tok_s, found.binding, share, accepted, least, note,
        None if share is not None else "not measured",
    )  # fmt: skip


def _limit(
    point: Point, shape: ModelShape, hardware: HardwareLimits, settings: Settings, streams: float,
    accepted: float | None, shared: bool,
) -> CellLimit:  # fmt: skip
    return limit(
        shape, hardware, point.context_tokens or 0, streams, mean_depth=point.depth_tokens,
        acceptance_length=accepted, draft_tokens=settings.draft_tokens if accepted is not None else None,
        tensor_parallel=settings.tensor_parallel, kv_bytes=settings.kv_bytes, shared_context=shared,
    )  # fmt: skip


def _prefill_reach(point: Point, found: CellLimit) -> CellReach:
    share = _share(point.measured_tok_s, found.prefill_tok_s)
    reason = None if share is not None else "not measured"
    if found.prefill_tok_s is None:
        reason = "the hardware's peak is not known (--tflops)"
    return CellReach(
        point, found, found.prefill_tok_s, found.prefill_binding, share, None, None, None, reason
    )  # fmt: skip


def _least_acceptance(
    point: Point, shape: ModelShape, hardware: HardwareLimits, settings: Settings, streams: float, found: CellLimit
) -> tuple[float, str | None]:
    """(acceptance length that the speed proves, what to say). Where it is not known whether the streams share their
    context, one that is read once a step for all is taken: that proves the least."""
    measured = point.measured_tok_s or 0.0
    generous = found
    if settings.shared_context is None and streams > 1:
        generous = _limit(point, shape, hardware, settings, streams, None, True)
    least = max(1.0, measured * generous.by_memory_s / streams)
    own = measured * found.by_memory_s / streams
    if own > 1 and least < own * 0.995:
        return least, (
            f"faster than one token a step: at least {own:.2f} where each stream reads its own context, "
            f"{least:.2f} where they share one"
        )
    return least, f"faster than one token a step: at least {least:.2f}" if least > 1 else None


def _share(measured: float | None, most: float | None) -> float | None:
    return measured / most if measured is not None and most else None


def _without(point: Point, reason: str) -> CellReach:
    return CellReach(point, None, None, None, None, None, None, None, reason)


def speeds_above(
    record: Record, shape: ModelShape, hardware: HardwareLimits, settings: Settings | None = None
) -> list[Above]:
    """Cells of a record that are faster than the hardware allows: findings for lint."""
    chosen = settings_of(record) if settings is None else settings
    return above(points_of_record(record), shape, hardware, chosen)


def above(points: Iterable[Point], shape: ModelShape, hardware: HardwareLimits, settings: Settings) -> list[Above]:
    """The same for points from anywhere. Every doubt speaks for the speed: contexts that may be shared are read once,
    experts are the same for all tokens, the cache is as narrow as engines offer unless its type is known, part of the
    weights stays on the chip, clocks run above the datasheet's, all GPUs work. Where speculative decoding ran with
    drafts of unknown length, nothing is found."""
    found: list[Above] = []
    for point in points:
        measured = point.low_tok_s
        if measured is None or not point.context_tokens or point.phase == "burst":
            continue
        ceiling = _ceiling(point, shape, hardware, settings)
        if ceiling is not None and measured > ceiling:
            found.append(_above(point, measured, ceiling))
    return found


def _ceiling(point: Point, shape: ModelShape, hardware: HardwareLimits, settings: Settings) -> float | None:
    fast = HardwareLimits(
        hardware.name, hardware.bandwidth_gb_s * BANDWIDTH_SLACK,
        {key: value * COMPUTE_SLACK for key, value in hardware.tflops.items()},
    )  # fmt: skip
    gpus = settings.gpus or settings.tensor_parallel
    if point.phase == "prefill":
        element = settings.kv_bytes if settings.kv_bytes is not None else LEAST_KV_BYTES
        load = Load(1.0, float(point.context_tokens or 0))
        solved = solve(shape, fast, load, point.context_tokens or 0, 1.0, gpus, element)
        return solved.prefill_tok_s if solved.prefill_binding == "compute" else None
    accepted = point.acceptance_length if point.acceptance_length is not None else settings.acceptance_length
    if accepted is None:
        if settings.speculative and settings.draft_tokens is None:
            return None
        accepted = settings.draft_tokens + 1.0 if settings.speculative and settings.draft_tokens else 1.0
    depth = float(point.context_tokens or 0)
    load = Load(
        streams=float(point.concurrency), depth_tokens=depth, checked_tokens=accepted, even_routing=False,
        shared_tokens=0.0 if settings.shared_context is False or point.concurrency == 1 else depth, replicated=False,
    )  # fmt: skip
    element = settings.kv_bytes if settings.kv_bytes is not None else min(LEAST_KV_BYTES, shape.kv_element_bytes)
    solved = solve(
        shape, fast, load, 0, accepted, gpus, element, spared_bytes=SPARED_BYTES, state_bytes_each=LEAST_STATE_BYTES,
    )  # fmt: skip
    return solved.decode_tok_s


def _above(point: Point, measured: float, ceiling: float) -> Above:
    what = "read a prompt" if point.phase == "prefill" else "decode"
    why = f"{measured:,.0f} tok/s, but this hardware cannot {what} faster than {ceiling:,.0f} tok/s with this model"
    advice = (
        "check that the prompt was cold (cached tokens) and as long as its label"
        if point.phase == "prefill"
        else "check the token count, the model and its quantisation, the GPU's name and count, and speculative decoding"
    )
    return Above(point, measured, ceiling, why, advice)


def _assumptions(
    shape: ModelShape, hardware: HardwareLimits, settings: Settings, cells: Sequence[CellReach]
) -> tuple[str, ...]:
    said = [*shape.notes]
    if not hardware.tflops:
        said.append("the hardware's peak is not known, so only memory is taken as a limit (--tflops gives it)")
    elif hardware.peak_flops(shape.compute) is None:
        said.append(f"no peak is known for {shape.compute} products, so only memory is taken as a limit (--tflops)")
    if shape.is_moe:
        said.append(
            "experts: as many distinct ones a step as even routing picks; routing that repeats itself may pass it"
        )
    if settings.speculative and any(c.point.phase == "decode" and c.acceptance_length is None for c in cells):
        said.append("how many tokens speculative decoding accepted is not known: the limit is that of one token a step")
    if settings.shared_context is None and any(c.point.concurrency > 1 for c in cells):
        said.append("whether the streams share one context is not known: each is taken to read its own")
    if any(c.point.running is not None and c.point.running < c.point.concurrency for c in cells):
        said.append("more requests than the server runs at once are held against those that run")
    if settings.shared_context:
        said.append("all streams share one context, which need be read only once a step")
    if any(c.point.phase == "decode" and c.point.depth_tokens is None for c in cells):
        said.append(
            "the output so far is not known: the cache is taken as long as the prompt, the limit is a little high"
        )
    return tuple(dict.fromkeys(said))
