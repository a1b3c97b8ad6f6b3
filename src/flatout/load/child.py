"""The load process: takes a job from the parent, runs the reader, reports. Ends when the parent is gone."""

from __future__ import annotations

import contextlib
import queue
import socket
import traceback
from time import monotonic_ns
from typing import Any, Final

import msgspec

from flatout.load import messages
from flatout.load.clock import Clock
from flatout.load.connection import Route, tls_settings
from flatout.load.driver import Driver
from flatout.load.job import Status, Stream
from flatout.load.reader import BATCH, Reader
from flatout.load.system import IN, OUT, SPARE_FILES, allow_files, give_back_priority, make_poller, take_priority
from flatout.net import Answers, look_up

STATUS_NS: Final = 100_000_000
STATUS_STREAMS: Final = 200
"""A status goes through all streams: with more than this many it comes less often."""
QUIET_STATUS_NS: Final = 1_000_000_000
COUNT_NS: Final = 400_000_000
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
        self._inbox = messages.Inbox()
        self._outbox = bytearray()
        self._poller = make_poller()
        self._poller.register(parent.fileno(), IN)
        self._clock = Clock()
        self._reader = Reader(self._poller, self._clock, {parent.fileno(): self._on_parent})
        self._driver: Driver | None = None
        self._begin: messages.Begin | None = None
        self._bodies: list[bytes] = []
        self._resolved: Answers | None = None  # while the server's address is looked up
        self._resolve_until_ns = 0
        self._ready_sent = False
        self._count: messages.Count | None = None
        self._count_until_ns = 0
        self._stopping = False
        self._quit = False
        self._status: Status | None = None
        self._status_ns = 0
        self._status_gap_ns = STATUS_NS
        self.send(messages.Hello(clock=self._clock.kind, reason=self._clock.reason))

    # the parent

    def send(self, message: messages.ToParent) -> None:
        self._outbox += messages.pack(message)
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
            self._receive(messages.decode_to_child(raw))

    def _receive(self, message: Any) -> None:
        driver = self._driver
        match message:
            case messages.Begin():
                self._begin, self._bodies = message, []
                self._accept_if_whole()
            case messages.Body(data=data):
                self._bodies.append(data)
                self._accept_if_whole()
            case messages.Launch() if driver is not None and driver.launched_ns < 0 and driver.error is None:
                driver.watch.priority = take_priority()
                self.send(messages.Launched(launch_ns=driver.launch()))
            case messages.Count():
                self._count = message
                self._count_until_ns = monotonic_ns() + COUNT_NS
                if driver is not None:
                    driver.ledger.catch_up(driver.running())
            case messages.Stop():
                self._stopping = True
            case messages.Quit():
                self._quit = True

    def report_crash(self, trace: str) -> None:
        """Tells the parent of a fault in this process, as the last message."""
        self._outbox += messages.pack(messages.Crashed(traceback=trace))
        self._parent.settimeout(5.0)
        with contextlib.suppress(OSError):
            self._parent.sendall(self._outbox)

    # a job

    def _accept_if_whole(self) -> None:
        begin = self._begin
        if begin is None or len(self._bodies) < begin.bodies:
            return
        try:
            allow_files(2 * len(begin.numbers) + SPARE_FILES)
            tls_settings(begin.job.endpoint)
            streams = list(zip(begin.numbers, self._streams(begin), strict=True))
            self._driver = self._reader.driver = Driver(begin.job, streams, self._clock, self._poller)
        except ValueError as error:
            self.send(messages.Rejected(reason=str(error)))
            return
        finally:
            self._begin, self._bodies = None, []
        self._ready_sent = self._stopping = False
        self._count = self._status = None
        self._status_ns = 0
        self._status_gap_ns = STATUS_NS * max(1, len(begin.numbers) // STATUS_STREAMS)
        endpoint = begin.job.endpoint
        peer = endpoint.proxy or endpoint
        self._resolved = look_up(peer.host, peer.port)
        self._resolve_until_ns = monotonic_ns() + int(begin.job.timeouts.connect_s * 1e9)
        self.send(messages.Accepted())

    def _streams(self, begin: messages.Begin) -> list[Stream]:
        def body(place: int) -> bytes | None:
            return None if place < 0 else self._bodies[place]

        return [
            msgspec.structs.replace(stream, body=body(own), first_body=body(first))
            for stream, (own, first) in zip(begin.job.streams, begin.places, strict=True)
        ]

    def _take_route(self, driver: Driver, answers: Answers) -> None:
        endpoint = driver.job.endpoint
        try:
            answer = answers.get_nowait()
        except queue.Empty:
            if monotonic_ns() < self._resolve_until_ns:
                return
            answer = TimeoutError()
        self._resolved = None
        if isinstance(answer, list):
            driver.begin(Route(endpoint=endpoint, addresses=answer, tls=tls_settings(endpoint)))
        elif isinstance(answer, TimeoutError):
            driver.stop(f"looking up {endpoint.host!r} took longer than {driver.job.timeouts.connect_s:g} s")
        else:
            what, host = ("the proxy", endpoint.proxy.host) if endpoint.proxy else ("the server", endpoint.host)
            reason = (answer.strerror if isinstance(answer, OSError) else None) or str(answer)
            driver.stop(f"cannot find {what}: no address for {host!r} ({reason})")

    def run(self) -> None:
        """Until the parent says so or is gone."""
        while not self._quit:
            driver = self._driver
            self._reader.step(0.005 if self._resolved is not None else 0.1)
            if driver is None or driver is not self._driver:
                continue
            if self._resolved is not None:
                self._take_route(driver, self._resolved)
            elif not self._ready_sent and driver.launched_ns < 0 and driver.ready and driver.error is None:
                self._ready_sent = True
                self.send(messages.Ready())
            now_ns = monotonic_ns()
            if self._count is not None and (now_ns > self._count_until_ns or not driver.ledger.busy):
                count, self._count = self._count, None
                self.send(messages.Counted(counts=driver.ledger.counts(count.t0_ns, count.bin_ns, driver.running())))
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
            self.send(messages.Progress(status=status))

    def _hand_over(self, driver: Driver) -> None:
        """The end of a job: what has arrived by now is still read, then all is closed, decoded and sent."""
        self._stopping = False
        for _ in range(DRAIN_ROUNDS * (1 + len(driver.lanes) // BATCH)):
            self._reader.step(0.0)
        give_back_priority()
        driver.cut()
        while not driver.finish_slice(monotonic_ns() + 500_000_000):
            self.send(messages.Working())
        error = driver.error
        if driver.launched_ns < 0 and error is None:
            error = "stopped before all connections were open"
        self._parent.settimeout(HAND_OVER_S)
        try:
            self._parent.sendall(self._outbox)
            self._outbox.clear()
            for column, data in driver.ledger.table.take_arrivals():
                self._parent.sendall(messages.pack(messages.Piece(column=column, data=data)))
        except OSError as gone:
            raise ParentGone from gone
        self._parent.setblocking(False)
        self.send(
            messages.Result(
                packed=driver.ledger.table.pack(),
                check=driver.watch.report(),
                launch_ns=driver.launched_ns,
                error=error,
            )
        )
        self._driver = self._reader.driver = self._resolved = None


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
                child.report_crash(traceback.format_exc())
                return 1
        except ParentGone:
            return 1
    return 0
