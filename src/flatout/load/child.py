"""The load process: hears the parent, runs the loop, reports. Ends when the parent is gone."""

from __future__ import annotations

import contextlib
import queue
import socket
import traceback
from time import monotonic_ns
from typing import Any, Final

import msgspec

from flatout.load import priority
from flatout.load.clock import Clock
from flatout.load.connection import Route, tls_settings
from flatout.load.driver import Driver
from flatout.load.files import SPARE_FILES, allow_files
from flatout.load.job import Status, Stream
from flatout.load.loop import BATCH, Loop
from flatout.load.messages import (
    Accepted,
    Begin,
    Body,
    Crashed,
    Hello,
    Inbox,
    Launch,
    Launched,
    Look,
    Piece,
    Quit,
    Ready,
    Rejected,
    Result,
    Seen,
    Stop,
    Told,
    ToParent,
    Working,
    decode_to_child,
    pack,
)
from flatout.load.poller import IN, OUT, make_poller
from flatout.net import Answers, look_up

STATUS_NS: Final = 100_000_000
STATUS_STREAMS: Final = 200
"""A status goes through all streams: with more than this many it comes less often."""
QUIET_STATUS_NS: Final = 1_000_000_000
LOOK_NS: Final = 400_000_000
DRAIN_ROUNDS: Final = 3
HAND_OVER_S: Final = 60.0
"""So long the parent may take over a piece of the samples before it counts as gone."""
_IO_BYTES: Final = 1 << 20


class ParentGone(Exception):
    pass


class Child:
    """One load process. At most one job at a time; the samples stay here until the parent stops the job."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        parent.setblocking(False)
        self._inbox = Inbox()
        self._outbox = bytearray()
        self._poller = make_poller()
        self._poller.register(parent.fileno(), IN)
        self._clock = Clock()
        self._loop = Loop(self._poller, self._clock, {parent.fileno(): self._on_parent})
        self._driver: Driver | None = None
        self._begin: Begin | None = None
        self._bodies: list[bytes] = []
        self._resolved: Answers | None = None  # while the server's address is looked up
        self._resolve_until_ns = 0
        self._ready_told = False
        self._look: Look | None = None
        self._look_deadline_ns = 0
        self._stopping = False
        self._quit = False
        self._status: Status | None = None
        self._status_ns = 0
        self._status_gap_ns = STATUS_NS
        self.say(Hello(clock=self._clock.kind, reason=self._clock.reason))

    # the parent

    def say(self, message: ToParent) -> None:
        self._outbox += pack(message)
        self._push()

    def _push(self) -> None:
        try:
            while self._outbox:
                sent = self._parent.send(memoryview(self._outbox)[:_IO_BYTES])
                del self._outbox[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise ParentGone from error
        self._poller.modify(self._parent.fileno(), IN | OUT if self._outbox else IN)

    def _on_parent(self, mask: int) -> None:
        if mask & OUT:
            self._push()
        if not mask & ~OUT:
            return
        try:
            data = self._parent.recv(_IO_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ParentGone from error
        if not data:
            raise ParentGone
        for raw in self._inbox.feed(data):
            self._hear(decode_to_child(raw))

    def _hear(self, message: Any) -> None:
        driver = self._driver
        match message:
            case Begin():
                self._begin, self._bodies = message, []
                self._accept_if_whole()
            case Body(data=data):
                self._bodies.append(data)
                self._accept_if_whole()
            case Launch() if driver is not None and driver.launched_ns < 0 and driver.error is None:
                driver.watch.priority = priority.take()
                self.say(Launched(launch_ns=driver.launch()))
            case Look():
                self._look = message
                self._look_deadline_ns = monotonic_ns() + LOOK_NS
                if driver is not None:
                    driver.ledger.catch_up(driver.running())
            case Stop():
                self._stopping = True
            case Quit():
                self._quit = True

    def confess(self, words: str) -> None:
        """Tells the parent of a fault in this process, as its last word."""
        self._outbox += pack(Crashed(words=words))
        self._parent.settimeout(5.0)
        with contextlib.suppress(OSError):
            self._parent.sendall(self._outbox)

    # a job

    def _accept_if_whole(self) -> None:
        begin = self._begin
        if begin is None or len(self._bodies) < begin.bodies:
            return
        try:
            allow_files(2 * len(begin.lanes) + SPARE_FILES)
            tls_settings(begin.job.endpoint)
            lanes = [(lane.number, self._stream(lane)) for lane in begin.lanes]
            self._driver = self._loop.driver = Driver(begin.job, lanes, self._clock, self._poller)
        except ValueError as error:
            self.say(Rejected(reason=str(error)))
            return
        finally:
            self._begin, self._bodies = None, []
        self._ready_told = self._stopping = False
        self._look = self._status = None
        self._status_ns = 0
        self._status_gap_ns = STATUS_NS * max(1, len(begin.lanes) // STATUS_STREAMS)
        endpoint = begin.job.endpoint
        peer = endpoint.proxy or endpoint
        self._resolved = look_up(peer.host, peer.port)
        self._resolve_until_ns = monotonic_ns() + int(begin.job.timeouts.connect_s * 1e9)
        self.say(Accepted())

    def _stream(self, lane: Any) -> Stream:
        return Stream(
            body=self._bodies[lane.body],
            asked_tokens=lane.asked_tokens,
            first_body=None if lane.first_body is None else self._bodies[lane.first_body],
            first_asked_tokens=lane.first_asked_tokens,
            rid_offset=lane.rid_offset,
            first_rid_offset=lane.first_rid_offset,
        )

    def _take_route(self, driver: Driver, answers: Answers) -> None:
        endpoint = driver.job.endpoint
        try:
            found = answers.get_nowait()
        except queue.Empty:
            if monotonic_ns() < self._resolve_until_ns:
                return
            found = TimeoutError()
        self._resolved = None
        if isinstance(found, list):
            driver.begin(Route(endpoint=endpoint, addresses=found, tls=tls_settings(endpoint)))
        elif isinstance(found, TimeoutError):
            driver.stop(f"looking up {endpoint.host!r} took longer than {driver.job.timeouts.connect_s:g} s")
        else:
            what, host = ("the proxy", endpoint.proxy.host) if endpoint.proxy else ("the server", endpoint.host)
            reason = (found.strerror if isinstance(found, OSError) else None) or str(found)
            driver.stop(f"cannot find {what}: no address for {host!r} ({reason})")

    def run(self) -> None:
        """Until the parent says so or is gone."""
        while not self._quit:
            driver = self._driver
            self._loop.step(0.005 if self._resolved is not None else 0.1)
            if driver is None or driver is not self._driver:
                continue
            if self._resolved is not None:
                self._take_route(driver, self._resolved)
            elif not self._ready_told and driver.launched_ns < 0 and driver.ready and driver.error is None:
                self._ready_told = True
                self.say(Ready())
            now_ns = monotonic_ns()
            if self._look is not None and (now_ns > self._look_deadline_ns or not driver.ledger.busy):
                look, self._look = self._look, None
                self.say(Seen(counts=driver.ledger.counts(look.t0_ns, look.bin_ns, driver.running())))
            if self._stopping:
                self._hand_over(driver)
            elif now_ns - self._status_ns >= self._status_gap_ns or (
                driver.ended and not (self._status and self._status.ended)
            ):
                self._report(driver, now_ns)

    def _report(self, driver: Driver, now_ns: int) -> None:
        if self._outbox:
            return
        status = driver.status(now_ns)
        quiet = self._status is not None and status == msgspec.structs.replace(self._status, t_ns=now_ns)
        if not quiet or now_ns - self._status_ns >= QUIET_STATUS_NS:
            self._status, self._status_ns = status, now_ns
            self.say(Told(status=status))

    def _hand_over(self, driver: Driver) -> None:
        """The end of a job: what has arrived by now is still read, then all is closed, decoded and sent."""
        self._stopping = False
        for _ in range(DRAIN_ROUNDS * (1 + len(driver.lanes) // BATCH)):
            self._loop.step(0.0)
        priority.give_back()
        driver.cut()
        while not driver.finish_slice(monotonic_ns() + 500_000_000):
            self.say(Working())
        error = driver.error
        if driver.launched_ns < 0 and error is None:
            error = "stopped before all connections were open"
        self._parent.settimeout(HAND_OVER_S)
        try:
            self._parent.sendall(self._outbox)
            self._outbox.clear()
            for column, data in driver.ledger.table.take_arrivals():
                self._parent.sendall(pack(Piece(column=column, data=data)))
        except OSError as gone:
            raise ParentGone from gone
        self._parent.setblocking(False)
        self.say(
            Result(
                packed=driver.ledger.table.pack(),
                check=driver.watch.report(),
                launch_ns=driver.launched_ns,
                error=error,
            )
        )
        self._driver = self._loop.driver = self._resolved = None


def main(descriptor: int) -> int:
    """Runs a load process that talks to its parent over `descriptor`."""
    with socket.socket(fileno=descriptor) as parent:
        try:
            child = Child(parent)
            try:
                child.run()
            except ParentGone:
                return 1
            except Exception:
                child.confess(traceback.format_exc())
                return 1
        except ParentGone:
            return 1
    return 0
