"""The load processes as the conductor sees them: start a job, look at it, stop it. Every wait is bounded."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, monotonic_ns
from types import TracebackType
from typing import IO, Any, Final

from msgspec import MsgspecError
from msgspec.structs import replace

from flatout.load import messages
from flatout.load.job import Counts, Job, SelfCheck, Status
from flatout.load.samples import Samples, merge

COMMAND: Final = ("-P", "-m", "flatout.load")
BEGIN_S: Final = 20.0
"""A process must have started, and have taken over a job, within this time."""
SILENCE_S: Final = 15.0
"""A process that says nothing for so long while a job runs is taken for hung (it speaks at least once a second)."""
COUNT_S: Final = 5.0
MIN_BIN_NS: Final = 1_000_000
RID_PREFIX_MAX: Final = 24
_STDERR: Final = 2


class LoadError(Exception):
    """The load core itself failed or cannot begin: a process died or hangs, or this machine's limits forbid the job."""


class JobRefused(LoadError):
    """This one job cannot begin (this machine's limits, settings of no use); the pool is as good as before."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job yielded. `checks`: one a process. `launch_ns`: when the first request of the launch was sent, -1 if
    there was no launch. `error`: why the job ended itself, None if it did not."""

    samples: Samples
    checks: list[SelfCheck]
    launch_ns: int
    error: str | None
    refused: int = 0
    """Refusals (429, 503) of requests that were answered later, and are not in `samples` any more."""


class _Child:
    """One load process and what is known of it."""

    def __init__(self, core: int | None) -> None:
        self.sock, child_sock = map(_above_standard, socket.socketpair())
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._sending = threading.Lock()
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        arguments = [str(child_sock.fileno())] + ([] if core is None else [str(core)])
        with child_sock:
            self.process = subprocess.Popen(
                [sys.executable, *COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[child_sock.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        self.sock.settimeout(BEGIN_S)
        self.inbox = messages.Inbox()
        self.last_message_s = monotonic()
        self.hello: messages.Hello | None = None
        self.dead: str | None = None
        self.reset()

    def reset(self) -> None:
        self.reply: messages.Accepted | messages.Rejected | None = None
        self.ready = False
        self.launch_ns: int | None = None
        self.status: Status | None = None
        self.counted: messages.Counted | None = None
        self.result: messages.Result | None = None
        self.pieces: dict[str, list[bytes]] = {}

    def take_samples(self) -> Samples:
        """What it handed over, which is gone here. `result` is there by now."""
        assert self.result is not None
        packed, self.result = self.result.packed, None
        while self.pieces:
            name, pieces = self.pieces.popitem()
            packed.columns[name] = b"".join(pieces)
        return packed.samples()

    def send(self, message: messages.ToChild) -> None:
        try:
            with self._sending:
                self.sock.sendall(messages.pack(message))
        except OSError as error:
            raise LoadError(
                self.dead or f"the load process {self.process.pid} does not listen any more: {error}"
            ) from error

    def exit_reason(self) -> str:
        """Why it is gone, from its exit code and its last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        code = self.process.returncode
        how = (
            "closed its connection"
            if code is None
            else f"was killed by signal {-code}"
            if code < 0
            else f"exited with {code}"
        )
        self._stderr.seek(0)
        lines = self._stderr.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return f"the load process {self.process.pid} {how}" + (f": {lines[-1]}" if lines else "")

    def close(self, *, kill: bool = False) -> None:
        """Ends the process; `kill`: at once, whatever it is doing."""
        if kill:
            self.process.kill()
        with contextlib.suppress(OSError):
            self.sock.settimeout(0.5)
            self.sock.sendall(messages.pack(messages.Quit()))
        self.sock.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5.0)
        self._stderr.close()


def _above_standard(sock: socket.socket) -> socket.socket:
    """The same socket under a descriptor above stderr's. Where a standard stream is closed (`flatout run 2>&-`), the
    system hands out its number, and the child's own stream would then take the socket's place."""
    if sock.fileno() > _STDERR:
        return sock
    import fcntl  # only where descriptors are numbers; elsewhere sockets never are so small

    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, _STDERR + 1))


class LoadPool:
    """The load processes, for any number of jobs one after the other. A thread of the parent listens to them, so that
    the newest status is always at hand. Raises LoadError wherever a process has died or hangs."""

    def __init__(self, processes: int = 1, cores: Sequence[int] | None = None) -> None:
        self._changed = threading.Condition()
        self._cores: list[int | None] = [cores[i % len(cores)] if cores else None for i in range(max(1, processes))]
        self._closed = True
        self._open()

    def _open(self) -> None:
        self._running: list[_Child] = []
        self._children: list[_Child] = []
        try:
            for core in self._cores:
                self._children.append(_Child(core))
            self._wake, self._waked = socket.socketpair()
        except OSError as error:
            for child in self._children:
                child.close(kill=True)
            raise LoadError(f"a load process cannot be started: {error.strerror or error}") from error
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="flatout-load", daemon=True)
        self._thread.start()
        try:
            self._await(lambda c: c.hello is not None, self._children, BEGIN_S, "start")
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Ends whatever is left of the processes and starts as many anew, on the same cores; a job that was running is
        lost. To be called after a LoadError that is no JobRefused. `pids` are others afterwards."""
        self._end(kill=True)
        self._open()

    def __enter__(self) -> LoadPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [c.process.pid for c in self._children]

    @property
    def clock(self) -> tuple[str, str | None]:
        """`kernel`, or `user` with the reason, if but one process has no kernel stamps."""
        for child in self._children:
            if child.hello is not None and child.hello.clock != "kernel":
                return "user", child.hello.reason
        return "kernel", None

    # jobs

    def start(self, job: Job) -> None:
        """Deals the streams over the processes; they connect, and launch together once all are connected.

        Raises JobRefused if this job cannot begin on this machine; the pool then takes another.
        """
        if self._running:
            raise LoadError("a job is running already: stop it first")
        if not job.streams:
            raise JobRefused("a job needs at least one stream")
        if len(job.rid_prefix) > RID_PREFIX_MAX:
            raise JobRefused(f"the prefix of the request ids is longer than {RID_PREFIX_MAX} characters")
        children = self._children[: len(job.streams)]
        with self._changed:
            self._running = children
            for child in children:
                child.reset()
                child.last_message_s = monotonic()
        try:
            for index, child in enumerate(children):
                for message in _deal(job, index, len(children)):
                    child.send(message)
            self._await(lambda c: c.reply is not None, children, BEGIN_S, "take over the job")
            for child in children:
                if isinstance(child.reply, messages.Rejected):
                    raise JobRefused(child.reply.reason)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """A job that did not come off: the processes that took it must not keep it, nor answer for it later."""
        taken = [c for c in self._running if isinstance(c.reply, messages.Accepted)]
        self._running = []
        with contextlib.suppress(LoadError):
            for child in taken:
                child.send(messages.Stop())
            self._await(lambda c: c.result is not None, taken, BEGIN_S, "drop the job")

    def status(self) -> Status:
        """The newest status of all processes together; `t_ns` is the oldest part's."""
        with self._changed:
            self._check_alive(self._running, None)
            return _merge_status([c.status for c in self._running])

    def wait(self, timeout_s: float, until: Callable[[Status], bool] | None = None) -> Status:
        """Waits until the job has ended, `until` is true of its status, or the time is over; returns the status."""
        deadline = monotonic() + timeout_s
        with self._changed:
            while True:
                self._check_alive(self._running, SILENCE_S)
                status = _merge_status([c.status for c in self._running])
                left = deadline - monotonic()
                if status.ended or left <= 0 or not self._running or (until is not None and until(status)):
                    return status
                self._changed.wait(min(left, 1.0))

    def look(self, bin_ns: int) -> Counts:
        """Events with content per bin since the launch; before it, no bins (`t0_ns` = -1)."""
        if bin_ns < MIN_BIN_NS:
            raise ValueError(f"a bin must be at least {MIN_BIN_NS} ns wide")
        launches = [c.launch_ns for c in self._running if c.launch_ns is not None]
        if len(launches) < len(self._running) or not launches:
            return Counts(t0_ns=-1, bin_ns=bin_ns, counts=())
        t0_ns = min(launches)
        for child in self._running:
            child.counted = None
            child.send(messages.Count(t0_ns=t0_ns, bin_ns=bin_ns))
        self._await(lambda c: c.counted is not None, self._running, COUNT_S, "count its events")
        parts = [c.counted.counts for c in self._running if c.counted is not None]
        width = max(len(p.counts) for p in parts)
        totals = tuple(sum(p.counts[i] for p in parts if i < len(p.counts)) for i in range(width))
        # one whose last event lies further back decodes as many as then
        decoding = tuple(
            sum(p.decoding[min(i, len(p.decoding) - 1)] for p in parts if p.decoding) for i in range(width)
        )
        return Counts(t0_ns=t0_ns, bin_ns=bin_ns, counts=totals, decoding=decoding)

    def stop(self) -> Outcome:
        """Closes what is in flight, waits until all is decoded, and returns it."""
        children, self._running = self._running, []
        if not children:
            raise LoadError("no job is running")
        for child in children:
            child.last_message_s = monotonic()
            with contextlib.suppress(LoadError):  # raised below, once all others are stopping
                child.send(messages.Stop())
        self._await(lambda c: c.result is not None, children, None, "hand over its samples")
        results = [c.result for c in children if c.result is not None]
        launches = [r.launch_ns for r in results if r.launch_ns >= 0]
        parts = [c.take_samples() for c in children]
        return Outcome(
            samples=merge(parts),
            checks=[r.check for r in results],
            launch_ns=min(launches, default=-1),
            error=next((r.error for r in results if r.error is not None), None),
        )

    def close(self) -> None:
        """Ends the processes; safe to call twice."""
        self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
        self._wake.close()
        self._thread.join(5.0)
        for child in self._children:
            child.close(kill=kill)
        self._waked.close()

    # waiting

    def _check_alive(self, children: list[_Child], silence_s: float | None) -> None:
        for child in children:
            if child.dead is not None:
                raise LoadError(child.dead)
            if silence_s is not None and monotonic() - child.last_message_s > silence_s:
                raise LoadError(
                    f"the load process {child.process.pid} has not answered for {silence_s:g} s: it hangs, or the "
                    "machine is overloaded"
                )

    def _await(self, met: Callable[[_Child], bool], children: list[_Child], timeout_s: float | None, what: str) -> None:
        """Waits until `met` holds for all. Without a timeout a process may take as long as it keeps talking."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        with self._changed:
            while not all(map(met, children)):
                self._check_alive([c for c in children if not met(c)], SILENCE_S if deadline is None else None)
                if deadline is not None and monotonic() > deadline:
                    raise LoadError(f"a load process did not {what} within {timeout_s:g} s")
                self._changed.wait(0.2)

    # listening (the thread)

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._waked, selectors.EVENT_READ, None)
            for child in self._children:
                selector.register(child.sock, selectors.EVENT_READ, child)
            while True:
                for key, _ in selector.select(1.0):
                    if key.data is None:
                        return
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)

    def _read(self, child: _Child) -> bool:
        try:
            data = child.sock.recv(1 << 20)
        except OSError:
            data = b""
        words = None if data else child.exit_reason()
        try:
            received = [messages.decode_to_parent(raw) for raw in child.inbox.feed(data)]
        except MsgspecError as error:
            data, received, words = b"", [], f"the load process {child.process.pid} cannot be understood: {error}"
        with self._changed:
            child.last_message_s = monotonic()
            for message in received:
                self._receive(child, message)
            if not data and child.dead is None:
                child.dead = words
            self._changed.notify_all()
        return bool(data)

    def _receive(self, child: _Child, message: Any) -> None:
        match message:
            case messages.Hello():
                child.hello = message
            case messages.Accepted() | messages.Rejected():
                child.reply = message
            case messages.Ready():
                child.ready = True
                if self._running and all(c.ready for c in self._running):
                    for other in self._running:
                        with contextlib.suppress(LoadError):
                            other.send(messages.Launch())
            case messages.Launched(launch_ns=launch_ns):
                child.launch_ns = launch_ns
            case messages.Progress(status=status):
                child.status = status
            case messages.Counted():
                child.counted = message
            case messages.Piece(column=column, data=piece):
                child.pieces.setdefault(column, []).append(piece)
            case messages.Result():
                child.result = message
            case messages.Crashed(traceback=trace):
                last = trace.strip().splitlines()[-1]
                child.dead = f"the load process {child.process.pid} failed: {last}"
            case messages.Working():
                pass


def _deal(job: Job, index: int, processes: int) -> list[messages.ToChild]:
    """The messages that give process `index` its share: every `processes`-th stream, and its share of the budget."""
    numbers = range(index, len(job.streams), processes)
    streams = [job.streams[number] for number in numbers]
    bodies: dict[bytes, int] = {}

    def place(body: bytes | None) -> int:
        return -1 if body is None else bodies.setdefault(body, len(bodies))

    budget = job.max_requests
    if budget is not None:
        budget = budget * (index + 1) // processes - budget * index // processes
    begin = messages.Begin(
        job=replace(job, streams=tuple(replace(s, body=b"", first_body=None) for s in streams), max_requests=budget),
        numbers=tuple(numbers),
        places=tuple((place(s.body), place(s.first_body)) for s in streams),
        bodies=len(bodies),
    )
    return [begin, *(messages.Body(data=data) for data in bodies)]


def _merge_status(parts: list[Status | None]) -> Status:
    known = [p for p in parts if p is not None]
    if not known:
        return Status(monotonic_ns(), 0, 0, 0, 0, 0, 0, 0, 0, 0)
    launched = [p for p in known if p.token_ns >= 0 and p.started]
    started = sum(p.started for p in launched)
    counted = ("connected", "started", "in_flight", "sent", "finished", "failed", "rate_limited", "events")
    return Status(
        t_ns=min(p.t_ns for p in known),
        lag_max_ns=max(p.lag_max_ns for p in known),
        last_error=next((p.last_error for p in known if p.last_error is not None), None),
        error=next((p.error for p in known if p.error is not None), None),
        ended=(len(known) == len(parts) and all(p.ended for p in known)) or any(p.error is not None for p in known),
        sent_ns=sum(p.sent_ns * p.started for p in launched) // started if started else -1,
        token_ns=sum(p.token_ns * p.started for p in launched) // started if started else -1,
        **{name: sum(getattr(p, name) for p in known) for name in counted},
    )
