"""The calibration as a document, kept per machine and version; what a run asks of it."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from flatout import __version__
from flatout.record import Model

FORMAT: Final = "flatout-calibration/1"
SLACK: Final = 1.05
"""A cell counts as beyond the range from 5 % above it: rates move by that from one cell to the next."""

Limit = Literal["client", "rig", "not reached"]


class Pair(Model):
    """One figure: what was really so, and what flatout read. None where there is none."""

    truth: float | None = None
    reading: float | None = None

    @property
    def off(self) -> float | None:
        """reading − truth."""
        return None if self.truth is None or self.reading is None else self.reading - self.truth

    @property
    def relative(self) -> float | None:
        """(reading − truth) / truth."""
        off = self.off
        return None if off is None or not self.truth else off / self.truth


class Point(Model):
    """One known speed, measured. `sender`: the rig's full engine, or the lean sender for high rates.

    `asked_events_s`, `sent_events_s`: what the sender was set to, and what it sent in the window. `merged_share`: of
    the events, those that took the stamp of one sent over 0.5 ms later, since the client read both together.
    `sender_late_p99_us`: how far behind its own schedule the sender was; `blocked`: events that found the client's
    socket full. `held_by`: who kept the point from what was asked. `trusted`: every error within the limits of
    `judge`; `reason` says why not. `attempts`: goes that it took, the last one counts.
    """

    name: str
    kind: Literal["scale", "shape", "events", "streams"]
    sender: Literal["rig", "lean"]
    streams: int
    stream_tok_s: float
    tokens_per_event: int
    pattern: Literal["step", "spread"]
    window_s: float
    asked_events_s: float
    sent_events_s: float
    total_tok_s: Pair
    ttft_p50_ms: Pair
    itl_p50_ms: Pair
    itl_p99_ms: Pair
    longest_gap_ms: Pair
    events_matched: int
    stamp_p50_us: float | None
    stamp_p99_us: float | None
    merged_share: float
    cpu_us_per_event: float | None
    cpu_share: float | None
    lag_p99_us: float | None
    late_reads: int
    reads: int
    sender_late_p99_us: float | None
    blocked: int
    token_source: str
    trusted: bool
    held_by: Literal["rig", "client"] | None = None
    reason: str | None = None
    attempts: int = 1


class MachineKey(Model):
    """What a calibration holds for: another processor, core count, kernel or Python needs its own."""

    cpu: str | None
    cores: int
    kernel: str
    architecture: str
    python: str

    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]


class Calibration(Model):
    """What this machine reads rightly, and what that costs.

    `max_events_s`: the most events a second of one load process that were read without a change of the result;
    `events_limit` says what ended the search: the client failed beyond it, the rig could send no more, or the time was
    over. `max_streams`, `streams_limit` likewise. `cpu_us_per_event`: CPU of the load process (reading, and decoding of
    what ended in the window), median over the points of at least 64 streams.
    """

    format: Literal["flatout-calibration/1"] = FORMAT
    id: str
    version: str
    machine: MachineKey
    made: str
    took_s: float
    quick: bool
    rig_cores: list[int]
    load_cores: list[int]
    clock: Literal["kernel", "user"]
    clock_reason: str | None
    load_average: list[float]
    points: list[Point]
    cpu_us_per_event: float | None
    max_events_s: float | None
    events_limit: Limit
    max_streams: int | None
    streams_limit: Limit
    notes: list[str]

    @property
    def name(self) -> str:
        """As a record names it."""
        return f"{self.id} of {self.made[:10]}"


def machine_key() -> MachineKey:
    """This machine, as far as it changes how fast streams are read."""
    from flatout.host.machine import cpu_model

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return MachineKey(
        cpu=cpu_model(),
        cores=cores,
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        python=platform.python_version(),
    )


def directory() -> Path:
    """flatout's folder in the user's cache directory (XDG; ~/Library/Caches on macOS)."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "flatout"
    base = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / base / "flatout"


def path_for(key: MachineKey, version: str = __version__) -> Path:
    return directory() / f"calibration-{version}-{key.digest()}.json"


def save(calibration: Calibration) -> Path:
    """Keeps the calibration as this machine's newest; written beside and renamed. Raises OSError."""
    path = path_for(calibration.machine, calibration.version)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(calibration.model_dump_json(indent=1), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def load_latest() -> Calibration | None:
    """This machine's and version's calibration; None where there is none, or the file is damaged."""
    try:
        text = path_for(machine_key()).read_text(encoding="utf-8")
        return Calibration.model_validate_json(text)
    except (OSError, ValidationError, ValueError, RuntimeError):
        return None


def beyond(calibration: Calibration | None, streams: int, events_s: float | None, processes: int = 1) -> str | None:
    """A sentence if a cell of so many streams and events a second lies beyond what the calibration showed to be read
    rightly; None if it does not, if nothing was calibrated, or if the calibration ended before it met a limit.
    `processes`: load processes that share the events."""
    if calibration is None:
        return None
    most_streams = calibration.max_streams if calibration.streams_limit != "not reached" else None
    most_events_s = calibration.max_events_s if calibration.events_limit != "not reached" else None
    if most_streams is not None and streams > SLACK * most_streams * processes:
        return (
            f"{streams:,} streams are more than the {most_streams * processes:,} up to which this client was "
            f"{_shown(calibration.streams_limit)} (flatout calibrate)"
        )
    if most_events_s is not None and events_s is not None and events_s > SLACK * most_events_s * processes:
        return (
            f"{events_s:,.0f} events/s are more than the {most_events_s * processes:,.0f} up to which this client was "
            f"{_shown(calibration.events_limit)} (flatout calibrate)"
        )
    return None


def _shown(limit: Limit) -> str:
    return "found to read rightly" if limit == "client" else "checked"
