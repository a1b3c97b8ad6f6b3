"""The result document, `flatout-record/1`: everything that was measured, on what, how, and why a cell is empty.

A figure that is not known is null and says why. Times of day are ISO 8601 with the UTC offset; `*_ns` are
CLOCK_MONOTONIC of the client. Everything in here has been through redaction before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FORMAT: Final = "flatout-record/1"
MAX_BYTES: Final = 256 * 1024 * 1024
QUANTILES: Final[Mapping[str, float]] = MappingProxyType({"p50": 0.5, "p90": 0.9, "p99": 0.99})
"""Percentiles of every Distribution, ascending, by the name of their field; each has `<name>_low` and `<name>_high`."""


class RecordError(Exception):
    """The file is no record that this version can read; the text says what it is instead and what to do."""


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_assignment=False)


class Fact(Model):
    """A value that identifies something, and where it came from. `reason`: why it is null."""

    value: str | int | float | bool | None = None
    source: Literal["typed", "server", "host", "derived"] | None = None
    reason: str | None = None


class Rate(Model):
    """A rate with its 95 % interval. `interval`: what the interval covers; `n`: batches or samples behind it."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    n: int | None = None
    reason: str | None = None

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval's width over the value; None where there is no interval or the value is 0."""
        if self.value is None or self.low is None or self.high is None or self.value <= 0:
            return None
        return (self.high - self.low) / 2 / self.value


class Histogram(Model):
    """Counts (token weights) between edges: len(edges) = len(counts) + 1, in the distribution's own unit."""

    edges: list[float]
    counts: list[float]


class Distribution(Model):
    """Percentiles; null where there are too few samples, with the reason by name (`p99`: …). `n`: samples;
    `censored`: samples that the window's end cut, known only as lower bounds. `p50_low` to `p99_high`: the percentiles'
    95 % intervals; null where none can be claimed, with the reason as `interval` (p50's), `p90_interval`,
    `p99_interval`."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None
    n: int = 0
    censored: int = 0
    p50_low: float | None = None
    p50_high: float | None = None
    p90_low: float | None = None
    p90_high: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None
    whose: str | None = None
    reasons: dict[str, str] = Field(default_factory=dict)
    histogram: Histogram | None = None


class Series(Model):
    """A curve for a chart: seconds since the window opened, and values (null: no reading)."""

    t_s: list[float]
    values: list[float | None]


class Flag(Model):
    """`name` as in the table of flags; `detail`: what was seen here, with figures."""

    name: str
    detail: str


class Window(Model):
    """The measured window. `opened`: time of day. `ended_by`: fixed time, precision reached, or longest time."""

    opened: str
    open_ns: int
    close_ns: int
    length_s: float
    ended_by: str
    looks_s: list[float]
    steady_after_s: float | None = None


class Tokens(Model):
    """Where the token counts came from, and how many. `reasoning_unstreamed`: billed but never streamed."""

    source: str | None = None
    in_window: float | None = None
    estimated_share: float | None = None
    reasoning_unstreamed: int | None = None
    own_total: float | None = None
    server_total: float | None = None
    reason: str | None = None


class Acceptance(Model):
    """Speculative decoding in the window: tokens per sequence and verification step."""

    length: float | None = None
    how: str | None = None
    draft_share: float | None = None
    reason: str | None = None


class PrefillSample(Model):
    """One cold prompt, alone on the server."""

    prompt_tokens: int | None
    cached_tokens: int | None
    ttft_ms: float | None
    prefill_tok_s: float | None
    used: bool
    note: str | None = None


class PrefillFigures(Model):
    prefill_tok_s: Rate
    ttft_ms: Distribution
    prompt_tokens: int | None = None
    rate_limited: int = 0
    samples: list[PrefillSample] = Field(default_factory=list)


class DecodeFigures(Model):
    """All figures of one decode cell; see docs/definitions.md for each."""

    total_tok_s: Rate
    per_request_tok_s: Distribution
    ttft_ms: Distribution
    cold_ttft_ms: float | None = None
    ttft_answer_ms: Distribution | None = None
    tpot_ms: Distribution
    itl_ms: Distribution
    longest_gap_ms: float | None = None
    longest_gap_open: bool = False
    connect_ms: float | None = None
    active_own_mean: float | None = None
    active_server_mean: float | None = None
    waiting_server_mean: float | None = None
    kv_use_max: float | None = None
    completed: int | None = None
    output_tokens: float | None = None
    mean_depth_tokens: float | None = None
    prompt_tokens_min: int | None = None
    prompt_tokens_max: int | None = None
    cached_tokens_mean: float | None = None
    asked_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    acceptance: Acceptance | None = None
    preemptions: float | None = None
    streams_started: int | None = None
    contexts_cached: bool | None = None
    looping_share: float | None = None
    drift_change: float | None = None
    two_modes_tok_s: tuple[float, float] | None = None
    reasons: dict[str, str] = Field(default_factory=dict)
    failed_requests: int = 0
    rate_limited: int = 0
    tok_s_series: Series | None = None
    running_series: Series | None = None
    waiting_series: Series | None = None


class BurstFigures(Model):
    """Fixed-count mode: all requests at once until all are done."""

    end_to_end_tok_s: Rate
    per_request_tok_s: Distribution
    duration_s: float | None = None
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    completed: int = 0
    failed_requests: int = 0
    rate_limited: int = 0
    output_tokens: float | None = None
    longest_gap_ms: float | None = None


class SelfCheck(Model):
    """The client's watch on itself over the cell; see `load.job.SelfCheck`.

    `pauses`: times at which the reading process stood still in the window, None in records that do not tell;
    `pause_longest_ms`: None if there was none. `pause_merged_events`: events that took a later one's stamp for them.
    """

    clock: str
    reads: int
    late_reads: int
    late_limit_ms: float
    merged_reads: int
    unstamped_reads: int
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    lag_worst_ms: float | None
    cpu_share: float | None
    gc_pauses: int
    gc_longest_ms: float
    clock_steps: int
    priority: str = "normal"
    pauses: int | None = None
    pauses_total_ms: float | None = None
    pause_longest_ms: float | None = None
    pause_merged_events: int | None = None


class Telemetry(Model):
    """The machine during the window: means and extremes by name (with unit), throttle reasons with their share."""

    means: dict[str, float | None] = Field(default_factory=dict)
    maxima: dict[str, float | None] = Field(default_factory=dict)
    throttle: dict[str, float] = Field(default_factory=dict)
    energy_j: float | None = None
    energy_how: str | None = None
    reasons: dict[str, str] = Field(default_factory=dict)
    series: dict[str, Series] = Field(default_factory=dict)


class Attempt(Model):
    """A measurement of the cell that was thrown away and redone."""

    started: str
    reason: str
    total_tok_s: float | None = None


class Cell(Model):
    """One planned cell, measured or not: every planned cell is in the record."""

    id: str
    phase: Literal["prefill", "decode", "burst"]
    context: str
    context_tokens: int | None
    concurrency: int
    max_output: int
    need_tokens: int | None
    status: str
    reason: str | None = None
    error: str | None = None
    flags: list[Flag] = Field(default_factory=list)
    started: str | None = None
    finished: str | None = None
    order: int | None = None
    window: Window | None = None
    tokens: Tokens | None = None
    prefill: PrefillFigures | None = None
    decode: DecodeFigures | None = None
    burst: BurstFigures | None = None
    self_check: SelfCheck | None = None
    telemetry: Telemetry | None = None
    attempts: list[Attempt] = Field(default_factory=list)
    samples: str | None = None


class Warmup(Model):
    """One unmeasured piece of load at the beginning, until the speed repeats."""

    what: str
    speeds: list[float | None]
    unit: str
    repeats: bool
    note: str | None = None


class Engine(Model):
    name: Fact
    version: Fact
    commit: Fact
    build: Fact
    backend: Fact
    repository: Fact
    adapter: str
    adapter_verified: bool
    launch_command: Fact
    speculative_method: Fact
    draft_model: Fact
    draft_length: Fact


class ServedModel(Model):
    id: Fact
    served_as: Fact
    revision: Fact
    quantization: Fact
    dtype: Fact


class ServerRoom(Model):
    model_length: Fact
    kv_tokens: Fact
    max_running: Fact


class Protocol(Model):
    """How requests are made: `fields` sent, `dropped` with the server's words, and what the server reports."""

    url: str
    api: str
    api_reason: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict)
    dropped: list[tuple[str, str]] = Field(default_factory=list)
    ignored: list[tuple[str, str]] = Field(default_factory=list)
    max_tokens_field: str = "max_tokens"
    reports: dict[str, bool] = Field(default_factory=dict)
    template_tokens: int | None = None
    prompt_count: str | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    timeouts_s: dict[str, float] = Field(default_factory=dict)
    tls: bool = False
    proxy: bool = False


class Hardware(Model):
    """The machine. `describes`: whose it is: the server's own, given by hand for it, or only the client's."""

    describes: Literal["server", "server, as typed", "client only"]
    facts: dict[str, Fact]


class Prompts(Model):
    mode: str
    source: str
    seed: int
    run_nonce: str
    hashes: dict[str, str] = Field(default_factory=dict)
    exact: bool | None = None
    note: str | None = None


class Plan(Model):
    suite: str
    prefill: list[str]
    decode: list[str]
    concurrency: list[int]
    time_s: float
    min_time_s: float
    precision: float | None
    max_output: int
    prefill_samples: int
    order: list[str]
    options: dict[str, Any] = Field(default_factory=dict)
    fingerprint: str


class Client(Model):
    """The measuring side: flatout, its machine, its clock."""

    flatout: str
    python: str
    command: list[str]
    machine: dict[str, Fact]
    stamp_clock: str
    stamp_clock_reason: str | None
    load_processes: int
    calibration: str | None = None


class Record(Model):
    """One run."""

    format: Literal["flatout-record/1"] = FORMAT
    id: str
    state: Literal["running", "finished", "interrupted", "failed"]
    state_reason: str | None = None
    started: str
    finished: str | None = None
    engine: Engine
    model: ServedModel
    room: ServerRoom
    protocol: Protocol
    hardware: Hardware
    client: Client
    plan: Plan
    prompts: Prompts
    warmups: list[Warmup] = Field(default_factory=list)
    cells: list[Cell]
    per_user_tok_s: float = 20.0
    note: str | None = None
    tokens_spent: dict[str, int] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


def parse(data: bytes | str) -> Record:
    """A record from JSON. Raises RecordError: too large, no JSON, not a record, a newer format, or a broken field."""
    import json

    if len(data) > MAX_BYTES:
        raise RecordError(f"the file has {len(data):,} bytes; a record has at most {MAX_BYTES:,}")
    try:
        content = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the file is not JSON, or cut off ({error}); was the run still writing it?") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), str):
        raise RecordError("the file is JSON but no flatout record: it has no 'format'")
    if content["format"] != FORMAT:
        raise RecordError(f"the file's format is {content['format'][:60]!r}; this flatout reads {FORMAT!r}: update it")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"the record is damaged at {where}: {first['msg']} ({error.error_count()} in all)") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number that a record may hold")


def find(path: Path) -> Path:
    """The record file for a path that names it or its directory. Raises RecordError if there is none."""
    if path.is_dir():
        path = path / "record.json"
    if not path.is_file():
        raise RecordError(f"there is no record at {path}; a run writes results/<time>-<model>-<engine>/record.json")
    return path


def read(path: Path) -> Record:
    """The record in a file or result directory. Raises RecordError."""
    found = find(path)
    try:
        return parse(found.read_bytes())
    except OSError as error:
        raise RecordError(f"cannot read {found}: {error.strerror or error}") from error


def dump(record: Record) -> str:
    """The record as JSON text, one line a small object, ending in a newline."""
    return record.model_dump_json(indent=1) + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema of the record (`docs/flatout-record-1.schema.json` is made from it)."""
    document = Record.model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["title"] = FORMAT
    return document


if __name__ == "__main__":
    import json

    print(json.dumps(schema(), indent=1))
