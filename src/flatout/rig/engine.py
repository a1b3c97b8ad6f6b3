"""The pretended engine: queue, room, prefill and decode on an absolute schedule. No sockets here.

Decoding streams share a clock of steps: step s begins at S(s) = S(s−1) + T, and T = tokens of a step / (tok/s of one
stream) is fixed as the step begins. A stream with phase p has its event at S + p·T: p is 0 for all in the "step"
pattern, and golden-section fractions (evenly interleaved for any number of streams) in "spread". The first token leaves
at the end of the prefill, whatever the clock says; the next one at the first of the stream's instants at least T/2
later.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from operator import itemgetter
from typing import Protocol

from flatout.rig.config import RigConfig
from flatout.rig.prompt import PrefixCache, Prompt
from flatout.rig.timing import EngineClock, Speed
from flatout.rig.truth import HIDDEN, LEFTOVER, NEVER, Log, Record

GOLDEN = 0.618_033_988_749_895
_WORK_DONE, _FIRST_TOKEN = 0, 1


class State(Enum):
    WAITING = 0
    PREFILL = 1
    DECODE = 2
    DONE = 3


class Sink(Protocol):
    """Where a job's tokens go."""

    def tokens(self, job: Job, n: int, due_ns: int, *, hold: bool) -> None:
        """n more tokens of each choice, due then; `hold`: the bytes may wait for the next call."""

    def finished(self, job: Job, finish: str) -> None:
        """The job ended by itself (length, stop) or was aborted (abort)."""


@dataclass(slots=True, eq=False)
class Job:
    """`done`, `max_tokens` and `target` are per choice; times are the engine's own ns (they stand still in a stall)."""

    number: int  # in the log
    record: Record
    prompt: Prompt
    max_tokens: int
    target: int  # where it ends
    finish: str = "length"  # how it ends there
    choices: int = 1
    stream: bool = True
    sink: Sink | None = None
    fixed_ns: int | None = None  # replaces the whole time to first token
    state: State = State.WAITING
    done: int = 0
    cached: int = 0
    leftover: bool = False
    leftover_end_ns: int | None = None
    slot: int = -1
    phase: float = 0.0
    ready_ns: int = 0  # no event of the common step before
    prefill_start_ns: int = 0
    first_ns: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    seen: bool = False  # its first token exists (a preempted job has it too)


@dataclass(slots=True)
class Counters:
    """Totals since start. `_live` ones move with each token, the others as requests end."""

    generated_live: int = 0
    generated: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})  # by streaming or not
    prompt: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    requests: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    prompt_live: int = 0  # moves as a prefill ends
    cached_live: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    aborted: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    steps: int = 0
    step_streams: int = 0  # sum over steps of the streams in it
    longest: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: float = 0.0
    realtime_decode: int = 0  # SGLang's: brought up to date every 40 steps


class Died(Exception):
    """The process has to end now (die_after_tokens)."""


class Engine:
    def __init__(self, config: RigConfig, log: Log, now: Callable[[], int]) -> None:
        self.config = config
        self.log = log
        self.now = now
        self.counters = Counters()
        self.clock = EngineClock(log)
        self.waiting: deque[Job] = deque()
        self.jobs: dict[int, Job] = {}  # by number: all that are not done
        self.running = 0  # sequences (choices) admitted
        self.decoding: list[Job] = []
        self._speed = Speed(config)
        self.cache = self._new_cache()
        self._random = random.Random(config.seed)
        self._timed: list[tuple[int, int, int, Job]] = []  # heap of (engine ns, order, kind, job)
        self._order = 0
        self._prefill_queue: deque[Job] = deque()  # serial prefill; the first one is being worked on
        self._step_ns: int | None = None
        self._period_ns = 0
        self._step: list[tuple[int, Job]] = []
        self._at = 0
        self._slots: set[int] = set()
        self._held: Counter[int] = Counter()  # prompts in the KV room, by key
        self.kv_prompts = 0
        self._reserved = 0

    # -- settings --------------------------------------------------------------------------------------------------
    def _new_cache(self) -> PrefixCache:
        c = self.config
        room = c.cache_tokens if c.cache_tokens is not None else c.kv_tokens
        return PrefixCache(
            enabled=c.cache, block_tokens=c.block_tokens, room_tokens=room, after_sends=c.cache_after_sends
        )

    def configure(self, config: RigConfig) -> None:
        """New speeds and limits from now on; the cache is emptied if its own knobs changed."""
        knobs = ("cache", "block_tokens", "cache_tokens", "cache_after_sends", "kv_tokens")
        renew = any(getattr(config, name) != getattr(self.config, name) for name in knobs)
        self.config, self._speed = config, Speed(config)
        if renew:
            self.cache = self._new_cache()
        self._admit(self.clock.engine_ns(self.now()))

    def renew_log(self, log: Log) -> None:
        """What is not done goes on in the new log, under new numbers."""
        self.log = log
        self.clock.clear(log)
        jobs = list(self.jobs.values())
        self.jobs = {}
        for job in jobs:
            job.number = log.open(job.record)
            self.jobs[job.number] = job
        self._level()

    # -- in and out ------------------------------------------------------------------------------------------------
    def submit(self, job: Job) -> None:
        """Queue the job; it starts at its arrival if there is room."""
        self.jobs[job.number] = job
        self.waiting.append(job)
        self._admit(self.clock.engine_ns(job.record.arrival_ns))
        self._level()

    def fits_at_all(self, prompt_tokens: int, output_tokens: int) -> bool:
        return self.config.kv_tokens is None or prompt_tokens + output_tokens <= self.config.kv_tokens

    def hang_up(self, job: Job) -> None:
        """The client is gone: the job ends, or runs on unseen if leftovers are asked for."""
        if job.state is State.DONE:
            return
        job.sink = None
        if self.config.leftover and job.state is not State.WAITING:
            job.leftover = True
            if self.config.leftover_limit_s is not None:
                t_ns = self.clock.engine_ns(self.now())
                job.leftover_end_ns = t_ns + int(self.config.leftover_limit_s * 1e9)
            return
        self._end(job, "client_closed")

    def drop(self, job: Job) -> None:
        """The server itself breaks the answer off (a planted fault)."""
        if job.state is not State.DONE:
            job.sink = None
            self._end(job, "fault")

    def abort(self, job: Job) -> None:
        """The engine's own cancel call."""
        if job.state is State.DONE or (job.leftover and not self.config.leftover_abortable):
            return
        sink, job.leftover = job.sink, False
        self.counters.aborted += 1
        self._end(job, "aborted")
        if sink is not None:
            sink.finished(job, "abort")

    # -- time ------------------------------------------------------------------------------------------------------
    def next_due_ns(self) -> int | None:
        """Real ns of the next thing to do; None when idle."""
        due = self._next_engine_ns()
        return None if due is None else self.clock.wake_ns(due)

    def _next_engine_ns(self) -> int | None:
        if self._at < len(self._step):
            due: int | None = self._step[self._at][0]
        elif self._step_ns is not None:
            due = self._step_ns + self._period_ns
        else:
            due = None
        if self._timed and (due is None or self._timed[0][0] < due):
            return self._timed[0][0]
        return due

    def run_due(self, limit: int) -> bool:
        """Do what is due, at most `limit` events; True if more is due already."""
        for _ in range(limit):
            due = self._next_engine_ns()
            if due is None:
                return False
            now_ns = self.now()
            if self.clock.real_ns(due, now_ns) > now_ns:
                return False
            if self._timed and self._timed[0][0] <= due:
                _, _, kind, job = heappop(self._timed)
                if job.state is State.PREFILL:
                    (self._work_done if kind == _WORK_DONE else self._first_token)(job, due)
            elif self._at < len(self._step):
                _, job = self._step[self._at]
                self._at += 1
                if job.state is State.DECODE:
                    self._decode(job, due)
            else:
                self._open_step(due)
        return True

    # -- admission -------------------------------------------------------------------------------------------------
    def _fits(self, job: Job) -> bool:
        c = self.config
        if c.max_running is not None and self.running and self.running + job.choices > c.max_running:
            return False
        if c.kv_tokens is None or not self.running:
            return True
        prompt = 0 if job.prompt.key in self._held else job.prompt.tokens
        output = job.done if c.preemption else job.max_tokens
        return self.kv_prompts + self._reserved + prompt + output * job.choices <= c.kv_tokens

    def _admit(self, t_ns: int) -> None:
        while self.waiting and self._fits(self.waiting[0]):
            job = self.waiting.popleft()
            self.running += job.choices
            job.state = State.PREFILL
            if job.record.admitted_ns == NEVER:
                job.record.admitted_ns = self.clock.real_ns(t_ns, self.now())
            if not self._held[job.prompt.key]:
                self.kv_prompts += job.prompt.tokens
            self._held[job.prompt.key] += 1
            self._reserved += (job.done if self.config.preemption else job.max_tokens) * job.choices
            if job.fixed_ns is not None:
                self._at_time(t_ns + job.fixed_ns, _FIRST_TOKEN, job)
            elif self.config.prefill_queue == "serial":
                self._prefill_queue.append(job)
                if len(self._prefill_queue) == 1:
                    self._start_prefill(job, t_ns)
            else:
                self._start_prefill(job, t_ns)
            self._level()

    def _at_time(self, t_ns: int, kind: int, job: Job) -> None:
        self._order += 1
        heappush(self._timed, (t_ns, self._order, kind, job))

    # -- prefill ---------------------------------------------------------------------------------------------------
    def _start_prefill(self, job: Job, t_ns: int) -> None:
        job.prefill_start_ns = t_ns
        job.cached = self.cache.cached_tokens(job.prompt)
        if not job.seen:
            job.record.cached_tokens = job.cached
        # A preempted job computes its own output again as well.
        work_ns = self._speed.prefill_ns(job.prompt.tokens + job.done, job.cached)
        if self.config.prefill_queue == "serial":
            # Noting a long prompt's blocks takes milliseconds: here nobody waits, and no other begins before its end.
            self.cache.insert(job.prompt)
        self._at_time(t_ns + work_ns, _WORK_DONE, job)

    def _work_done(self, job: Job, t_ns: int) -> None:
        if self.config.prefill_queue != "serial":
            self.cache.insert(job.prompt)
        if self._prefill_queue and self._prefill_queue[0] is job:
            self._prefill_queue.popleft()
            if self._prefill_queue:
                self._start_prefill(self._prefill_queue[0], t_ns)
        fixed_ns = self._speed.fixed_ns(job.prompt.tokens, job.cached, self.running)
        self._at_time(t_ns + fixed_ns, _FIRST_TOKEN, job)

    def _first_token(self, job: Job, t_ns: int) -> None:
        c = self.counters
        if not job.seen:
            c.prompt_live += job.prompt.tokens
            c.cached_live += job.cached
            c.prompt_s += (t_ns - job.prefill_start_ns) / 1e9
            job.first_ns, job.seen = t_ns, True
        job.state = State.DECODE
        job.slot = next(i for i in range(len(self._slots) + 1) if i not in self._slots)
        self._slots.add(job.slot)
        job.phase = job.slot * GOLDEN % 1.0 if self.config.pattern == "spread" else 0.0
        self.decoding.append(job)
        period_ns = self._new_period()
        if self._step_ns is None:
            self._period_ns = period_ns
            self._step_ns = t_ns - round(job.phase * period_ns)
        job.ready_ns = t_ns + period_ns // 2
        self._give(job, min(self.config.first_event_tokens, job.target - job.done), t_ns)
        if job.done >= job.target and job.state is State.DECODE:
            self._end(job, "finished", t_ns)

    # -- decode ----------------------------------------------------------------------------------------------------
    def _new_period(self) -> int:
        c = self.config
        context = sum(job.prompt.tokens for job in self.decoding) / len(self.decoding)
        rate = self._speed.stream_tok_s(self.running, len(self.decoding), context)
        tokens = c.spec_accept_length or c.tokens_per_event
        return max(1, round(tokens * c.burst_events / rate * 1e9))

    def _open_step(self, start_ns: int) -> None:
        if not self.decoding:
            self._step_ns = None
            self._step, self._at = [], 0
            return
        self._make_room()
        c, counters = self.config, self.counters
        period = self._period_ns = self._new_period()
        self._step_ns = start_ns
        counters.steps += 1
        counters.step_streams += len(self.decoding)
        if counters.steps % 40 == 0:
            counters.realtime_decode = counters.generated_live
        jitter = min(c.jitter_ms * c.time_scale * 1e6, period / 8)
        each = c.pattern == "spread"
        shift = 0 if each or not jitter else self._jitter(jitter)
        step = []
        for job in self.decoding:
            due = start_ns + round(job.phase * period)
            if due >= job.ready_ns:
                step.append((due + (self._jitter(jitter) if each and jitter else shift), job))
        if each:
            step.sort(key=itemgetter(0))
        self._step, self._at = step, 0

    def _jitter(self, deviation_ns: float) -> int:
        """Within ±3 standard deviations, and never before the schedule's own start."""
        return round(max(-3.0, min(3.0, self._random.gauss(0.0, 1.0))) * deviation_ns)

    def _make_room(self) -> None:
        c = self.config
        if not c.preemption or c.kv_tokens is None:
            return
        per_step = max(c.tokens_per_event, 1 + c.spec_draft_tokens if c.spec_accept_length else 1) * c.burst_events
        while len(self.decoding) > 1 and self.kv_used() + per_step * len(self.decoding) > c.kv_tokens:
            youngest = max(self.decoding, key=lambda job: job.number)
            self.counters.preemptions += 1
            self._release(youngest)
            youngest.state = State.WAITING
            self.waiting.appendleft(youngest)
            self._level()

    def kv_used(self) -> int:
        """Tokens in the KV room now."""
        return self.kv_prompts + sum(job.done * job.choices for job in self.jobs.values() if job.state.value in (1, 2))

    def _decode(self, job: Job, due_ns: int) -> None:
        c = self.config
        if job.leftover_end_ns is not None and due_ns >= job.leftover_end_ns:
            self._end(job, "leftover")
            return
        for i in range(c.burst_events):
            n = min(self._event_tokens(job), job.target - job.done)
            hold = c.burst_one_send and i + 1 < c.burst_events and job.done + n < job.target
            if c.spec_accept_length and c.dialect == "llamacpp":  # a chunk a token, all of a step at once
                for _ in range(n):
                    self._give(job, 1, due_ns)
            else:
                self._give(job, n, due_ns, hold=hold)
            if job.done >= job.target or job.state is not State.DECODE:
                break
        if job.done >= job.target and job.state is State.DECODE:
            self._end(job, "finished", due_ns)

    def _event_tokens(self, job: Job) -> int:
        c = self.config
        if not c.spec_accept_length:
            return c.tokens_per_event
        chance = (c.spec_accept_length - 1) / c.spec_draft_tokens
        accepted = sum(self._random.random() < chance for _ in range(c.spec_draft_tokens))
        self.counters.drafts += 1
        self.counters.draft_tokens += c.spec_draft_tokens
        self.counters.accepted += accepted
        job.draft_tokens += c.spec_draft_tokens
        job.accepted += accepted
        return 1 + accepted

    def _give(self, job: Job, n: int, due_ns: int, *, hold: bool = False) -> None:
        total = n * job.choices
        before = job.done
        job.done += n
        job.record.generated_tokens += total
        self.counters.generated_live += total
        if self.config.preemption:
            self._reserved += total
        if job.sink is None:
            self.log.event(self.now(), job.number, total, 0, LEFTOVER)
        elif before < self.config.hidden_tokens:
            self.log.event(self.now(), job.number, total, 0, HIDDEN)
        else:
            job.sink.tokens(job, n, due_ns + self.clock.offset_ns, hold=hold)
        limit = self.config.die_after_tokens
        if limit and self.counters.generated_live >= limit:
            raise Died

    # -- the end of a job ------------------------------------------------------------------------------------------
    def _release(self, job: Job) -> None:
        """Take it out of the running ones and free its room."""
        if job.state is State.DECODE:
            self.decoding.remove(job)
            self._slots.discard(job.slot)
        self.running -= job.choices
        self._held[job.prompt.key] -= 1
        if not self._held[job.prompt.key]:
            del self._held[job.prompt.key]
            self.kv_prompts -= job.prompt.tokens
        self._reserved -= (job.done if self.config.preemption else job.max_tokens) * job.choices

    def _end(self, job: Job, reason: str, due_ns: int | None = None) -> None:
        now_ns = self.now()
        if job.state is State.WAITING:
            self.waiting.remove(job)
        else:
            self._release(job)
        was_working = bool(self._prefill_queue) and self._prefill_queue[0] is job
        if job in self._prefill_queue:
            self._prefill_queue.remove(job)
        job.state = State.DONE
        del self.jobs[job.number]
        job.record.end_ns = now_ns
        job.record.reason = "leftover" if job.leftover else reason
        self._count_end(job, reason)
        self._level()
        if job.sink is not None and reason == "finished":
            job.sink.finished(job, job.finish)
        job.sink = None
        t_ns = due_ns if due_ns is not None else self.clock.engine_ns(now_ns)
        if was_working and self._prefill_queue:
            self._start_prefill(self._prefill_queue[0], t_ns)
        self._admit(t_ns)

    def _count_end(self, job: Job, reason: str) -> None:
        c = self.counters
        c.generated[job.stream] += job.done * job.choices
        c.prompt[job.stream] += job.prompt.tokens
        c.requests[job.stream] += 1
        c.longest = max(c.longest, job.prompt.tokens + job.done)
        if reason == "finished":
            c.finished[job.finish] += 1
        if job.seen:
            t_ns = self.clock.engine_ns(self.now())
            c.decode_s += (t_ns - job.first_ns) / 1e9
            c.ttft_s += max(0, job.record.first_ns - job.record.arrival_ns) / 1e9
        if not self.jobs:
            c.realtime_decode = c.generated_live

    def _level(self) -> None:
        self.log.level(self.now(), self.running, sum(job.choices for job in self.waiting))
