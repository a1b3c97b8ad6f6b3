"""A calibration from beginning to end. Never prints; tells a listener what it does."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import uuid4

from flatout import __version__
from flatout.calibrate.bench import Scene, SceneError, events_scene, known_speeds, measure, streams_scene
from flatout.calibration import Calibration, Limit, Point, machine_key, save
from flatout.load.process import LoadError, LoadPool
from flatout.load.system import most_streams
from flatout.rig import RigConfig, RigHandle, running

WINDOW_S: Final = 2.0
QUICK_WINDOW_S: Final = 1.0
BUDGET_S: Final = 105.0
QUICK_BUDGET_S: Final = 30.0
_SCENE_EXTRA_S: Final = 1.5  # start, settling, stop and comparison of one scene
FIRST_EVENTS_S: Final = 20_000.0
RAMP: Final = 1.5
MOST_EVENTS_S: Final = 160_000.0
NARROW: Final = 1.15
"""The search ends when the least rate that failed is so close to the largest that did not."""
STREAMS: Final = (512, 1024, 2048)
STREAMS_EVENTS_S: Final = 20_000.0
_RESERVED: Final = 10  # scenes' time that second goes of known speeds leave for the search of the limits


@dataclass(frozen=True, slots=True)
class Doing:
    """What goes on now, and about how much of it all is done (0 to 1)."""

    text: str
    share: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A point is there (or again, after a second go)."""

    point: Point


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the reader of the result has to know."""

    text: str


Event = Doing | Measured | Note
Listener = Callable[[Event], None]


class CalibrationError(Exception):
    """Nothing could be calibrated; the text says what to do."""


def calibrate(
    listener: Listener,
    *,
    rig_cores: Sequence[int] | None = None,
    load_cores: Sequence[int] | None = None,
    quick: bool = False,
    keep: bool = True,
) -> Calibration:
    """Measures the known speeds with one load process on `load_cores` and the senders on `rig_cores`, and keeps the
    result for later runs (`keep`). By default the load process gets the last core and the senders the others.

    Takes at most about a minute and three quarters (`quick`: half a minute). Raises CalibrationError, LoadError,
    RigError, and OSError where the result cannot be kept.
    """
    begun, begun_at = time.monotonic(), datetime.now().astimezone()
    rig, load = choose_cores(rig_cores, load_cores)
    load_average = [round(x, 2) for x in os.getloadavg()]
    with (
        running(RigConfig(dialect="vllm"), cores=rig) as full,
        running(RigConfig(), cores=rig, lean=True) as lean,
        LoadPool(1, load or None) as pool,
    ):
        go = _Go(listener, {False: full, True: lean}, pool, quick=quick, begun=begun)
        if rig and set(rig) & set(load):
            go.note("the rig and the reader share a core: what is read here understates this machine")
        if load_average[0] > 0.5 * (os.cpu_count() or 1):
            go.note(
                f"other work kept this machine busy (load average {load_average[0]:.1f}): calibrate when it is idle"
            )
        go.known()
        streams, streams_limit = go.streams()  # a few scenes; the search of the most events takes what is left
        events, events_limit = go.events()
        clock, clock_reason = pool.clock
    if not go.points:
        raise CalibrationError("no known speed could be measured: " + "; ".join(go.notes))
    costs = [p.cpu_us_per_event for p in go.points if p.streams >= 64 and p.cpu_us_per_event is not None]
    result = Calibration(
        id=uuid4().hex[:8], version=__version__, machine=machine_key(), made=begun_at.isoformat(timespec="seconds"),
        took_s=round(time.monotonic() - begun, 1), quick=quick, rig_cores=list(rig), load_cores=list(load),
        clock="kernel" if clock == "kernel" else "user", clock_reason=clock_reason, load_average=load_average,
        points=go.points, cpu_us_per_event=statistics.median(costs) if costs else None, max_events_s=events,
        events_limit=events_limit, max_streams=streams, streams_limit=streams_limit, notes=go.notes,
    )  # fmt: skip
    if keep:
        save(result)
    return result


def choose_cores(rig: Sequence[int] | None, load: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Cores of the senders and of the load process; empty where this system pins no processes.

    Raises CalibrationError for a core that this process may not use."""
    if not hasattr(os, "sched_getaffinity"):
        return [], []
    usable = sorted(os.sched_getaffinity(0))
    for core in (*(rig or ()), *(load or ())):
        if core not in usable:
            raise CalibrationError(f"core {core} cannot be used here; there are {', '.join(map(str, usable))}")
    if load is None:
        free = [core for core in usable if core not in (rig or ())]
        load = [(free or usable)[-1]]
    if rig is None:
        rig = [core for core in usable if core not in load] or usable
    return sorted(rig), sorted(load)


class _Go:
    """The points so far, within the time that there is."""

    def __init__(
        self, listener: Listener, rigs: dict[bool, RigHandle], pool: LoadPool, *, quick: bool, begun: float
    ) -> None:
        self.points: list[Point] = []
        self.notes: list[str] = []
        self._listener, self._rigs, self._pool = listener, rigs, pool
        self._quick, self._begun = quick, begun
        self._window_s = QUICK_WINDOW_S if quick else WINDOW_S
        self._budget_s = QUICK_BUDGET_S if quick else BUDGET_S

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._listener(Note(text))

    def _left(self, scenes: float = 1.0) -> bool:
        """Whether so many more scenes can be measured in time."""
        need_s = scenes * (self._window_s + _SCENE_EXTRA_S)
        return self._budget_s - (time.monotonic() - self._begun) > need_s

    def known(self) -> None:
        """The scale and the shapes. What was not read rightly gets a second go, which then counts, as far as that
        leaves time for the rest."""
        scenes = known_speeds(quick=self._quick)
        for done, scene in enumerate(scenes, 1):
            if not self._left():
                self.note(f"no time was left for {scene.name}")
                continue
            point = self._point(scene)
            if point is not None and not point.trusted and self._left(1 + len(scenes) - done + _RESERVED):
                self._point(scene, again=True)
        for point in self.points:
            if not point.trusted:
                self.note(f"{point.name} was not read rightly: {point.reason}")

    def _point(self, scene: Scene, *, again: bool = False) -> Point | None:
        share = min(1.0, (time.monotonic() - self._begun) / self._budget_s)
        self._listener(Doing(f"{scene.name}{' once more' if again else ''}", share))
        try:
            point = measure(scene, self._rigs[scene.lean], self._pool, self._window_s)
        except SceneError as error:
            self.note(str(error))
            return None
        if again:
            point.attempts = 2
            self.points = [p for p in self.points if p.name != scene.name]
        self.points.append(point)
        self._listener(Measured(point))
        return point

    def events(self) -> tuple[float | None, Limit]:
        """Raises the events per second until the client fails or the rig can send no more; then halves the step."""
        best = max((p.sent_events_s for p in self.points if p.trusted), default=None)
        good, bad = FIRST_EVENTS_S / RAMP, MOST_EVENTS_S * RAMP
        failed = False
        while self._left() and bad / good > NARROW:
            asked = good * RAMP if good * RAMP < bad else (good * bad) ** 0.5
            point = self._twice(events_scene(asked))
            if point is not None and point.trusted:
                best, good = max(best or 0.0, point.sent_events_s), asked
                if point.held_by == "rig":
                    return best, "rig"
            else:
                failed, bad = True, asked
                if asked <= FIRST_EVENTS_S:
                    break
        return best, "client" if failed else "not reached"

    def _twice(self, scene: Scene) -> Point | None:
        """A point that is wrong once may have been disturbed; twice, it is the client. None: nothing was measured."""
        point = self._point(scene)
        if (point is None or not point.trusted) and self._left():
            point = self._point(scene, again=True)
        return point

    def streams(self) -> tuple[int | None, Limit]:
        """Raises the number of streams at a moderate number of events per second."""
        scale = [p for p in self.points if p.kind in ("scale", "events")]
        best = max((p.streams for p in scale if p.trusted), default=None)
        for streams in STREAMS[: 1 if self._quick else None]:
            if not self._left():
                return best, "not reached"
            most = most_streams(1)
            if most is not None and streams > most:
                self.note(f"{streams:,} streams need more open files than this system allows (ulimit -n)")
                return best, "not reached"
            scene = streams_scene(streams, STREAMS_EVENTS_S)
            try:
                point = self._twice(scene)
            except LoadError as error:
                self.note(f"{streams:,} streams: {error}")
                return best, "client"
            if point is None or not point.trusted:
                return best, "client"
            best = streams
        return best, "not reached"
