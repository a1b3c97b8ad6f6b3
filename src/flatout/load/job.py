"""What the load core is told to do, and what it says while it works: plain values that travel between processes."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

RID_WIDTH = 40
"""Characters of a request id, fixed so that a body's length never changes."""


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy. `authorization` is the value of Proxy-Authorization, or None."""

    host: str
    port: int
    authorization: str | None = None


class Endpoint(msgspec.Struct, frozen=True):
    """Where requests go. `path` begins with `/`; `headers` are sent as given (no Host, no Content-Length)."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    insecure: bool = False
    proxy: Proxy | None = None


class Timeouts(msgspec.Struct, frozen=True):
    """Limits in seconds. `first_byte_s` runs from the request sent to the first *token* (a long prefill is silent);
    `idle_s` between two arrivals after it; `total_s` over one request."""

    connect_s: float = 10.0
    first_byte_s: float = 900.0
    idle_s: float = 60.0
    total_s: float = 3600.0


class Stream(msgspec.Struct, frozen=True):
    """One of the N simultaneous users: sends `body` again and again.

    `first_body` (with `first_asked`) replaces it in the first round, so that restarts are spread. `rid_offset`: where
    in the bodies a request id of RID_WIDTH characters is to be written, -1 for none (`first_rid_offset` likewise).
    """

    body: bytes
    asked_tokens: int
    first_body: bytes | None = None
    first_asked_tokens: int = 0
    rid_offset: int = -1
    first_rid_offset: int = -1


class Job(msgspec.Struct, frozen=True):
    """One piece of load. `closed`: each stream restarts as it ends, until stopped. `once`: each body is sent once, all
    at the same moment; the job ends with the last.

    `api` selects how events are read. `rid_prefix` makes request ids unique over runs. `give_up_after`: consecutive
    failures of one stream after which the job stops itself with an error. `keep_text`: return the generated text.
    """

    name: str
    mode: Literal["closed", "once"]
    api: Literal["chat", "completions"]
    endpoint: Endpoint
    timeouts: Timeouts
    streams: tuple[Stream, ...]
    rid_prefix: str = ""
    give_up_after: int = 3
    max_retry_after_s: float = 60.0
    keep_text: bool = True
    max_requests: int | None = None
    """Closed loop only: stop restarting once this many requests have been sent (a token budget, say)."""


class Status(msgspec.Struct, frozen=True):
    """How a job stands, sent a few times a second. `started`: streams whose request has yielded at least one token in
    some round. `in_flight`: requests sent and not ended. `events`: data events with content seen so far (not tokens).
    `error`: set when the job stopped itself. `sent_ns`, `token_ns`: when the launch's requests were sent and
    yielded their first tokens, in the mean over those that did; -1 before any."""

    t_ns: int
    connected: int
    started: int
    in_flight: int
    sent: int
    finished: int
    failed: int
    rate_limited: int
    events: int
    lag_max_ns: int
    last_error: str | None = None
    error: str | None = None
    ended: bool = False
    sent_ns: int = -1
    token_ns: int = -1


class Counts(msgspec.Struct, frozen=True):
    """Events with content per bin so far: bin i covers [t0_ns + i * bin_ns, t0_ns + (i+1) * bin_ns). `decoding`: how
    many requests were between their first and last event at each bin's end."""

    t0_ns: int
    bin_ns: int
    counts: tuple[int, ...]
    decoding: tuple[int, ...] = ()


LAG_BIN_NS: Final = 100_000_000
"""Time for which the longest lag is kept."""


class SelfCheck(msgspec.Struct, frozen=True):
    """How the load process itself fared. Lag = the process's own clock when it read minus the kernel's receive stamp.

    `late_reads`: reads whose lag exceeded `late_limit_ns`. `merged_reads`: reads in which a stream's several events
    came together though their stamps could have differed. `unstamped_reads`: reads for which the kernel gave no stamp.
    `priority`: of the process among the machine's others.
    `cpu_s`/`wall_s`: of the process over the job. `gc_pauses`/`gc_longest_ns`: collections during the job.
    `lag_t_ns`/`lag_max_ns`: longest lag per LAG_BIN_NS, for the part of it that falls into the window.
    `pauses`, `pauses_total_ns`: times at which it read nothing for 5 ms longer than it meant to wait. Of the longest of
    them (64 at most), in order of time: `pause_t_ns` when, `pause_ns` how long, `pause_merged` how many events took a
    later one's stamp for it. `watched_s`: length of the window that lags and pauses are told for, None: the job.
    """

    clock: Literal["kernel", "user"]
    clock_reason: str | None
    reads: int
    late_limit_ns: int
    late_reads: int
    merged_reads: int
    unstamped_reads: int
    lag_p50_ns: int | None
    lag_p99_ns: int | None
    lag_worst_ns: int | None
    cpu_s: float
    wall_s: float
    gc_pauses: int
    gc_longest_ns: int
    realtime_offset_ns: int
    realtime_offset_steps: int
    priority: Literal["real-time", "normal"] = "normal"
    lag_t_ns: tuple[int, ...] = ()
    lag_max_ns: tuple[int, ...] = ()
    pauses: int = 0
    pauses_total_ns: int = 0
    pause_t_ns: tuple[int, ...] = ()
    pause_ns: tuple[int, ...] = ()
    pause_merged: tuple[int, ...] = ()
    watched_s: float | None = None
