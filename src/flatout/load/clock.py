"""The clock of every sample: CLOCK_MONOTONIC nanoseconds, taken by the kernel as bytes arrive where it can.

`SO_TIMESTAMPNS` gives CLOCK_REALTIME of the last byte that a read returns (Linux ≥ 4.14, TCP included). The offset
between the two clocks is sampled every second, so a wall clock that is set during a run cannot break the numbers.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from time import monotonic_ns
from typing import Final, Literal

SO_TIMESTAMPNS: Final = 35  # asm-generic; the self-test finds out where it means something else
STAMP: Final = struct.Struct("@ll")  # struct timespec of the kernel's own word size
ANCILLARY_BYTES: Final = socket.CMSG_SPACE(STAMP.size) if hasattr(socket, "CMSG_SPACE") else 0
STEP_NS: Final = 1_000_000  # slewing moves both clocks together; a difference this large is a clock that was set
DOUBTFUL_LAG_NS: Final = 20_000_000
_MARGIN_NS: Final = 50_000
_TRIES: Final = 200
_PROOFS: Final = 20


def clock_offset_ns() -> int:
    """CLOCK_REALTIME − CLOCK_MONOTONIC now, from the tightest of five pairs of readings (about 0.05 µs)."""
    best, offset = 1 << 62, 0
    for _ in range(5):
        before = monotonic_ns()
        real = time.time_ns()
        after = monotonic_ns()
        if after - before < best:
            best, offset = after - before, real - (before + after) // 2
    return offset


class Clock:
    """Which clock this process stamps with, and the offset that turns the kernel's stamps into monotonic time.

    `kind` is `kernel` if a self-test over loopback found every stamp between its send and its read, else `user`, with
    the reason. A stamped UDP socket stays open: the kernel switches stamping on some time after the first such
    socket appears, and the first reads of a run must not be without.
    """

    def __init__(self, *, kernel: bool = True) -> None:
        self.offset_ns = clock_offset_ns()
        self.steps = 0
        self._keeper: socket.socket | None = None
        self.reason: str | None = self._try_kernel() if kernel else "kernel stamps were not asked for"
        self.kind: Literal["kernel", "user"] = "user" if self.reason else "kernel"

    def _try_kernel(self) -> str | None:
        if sys.platform != "linux":
            return "this system gives no kernel receive stamps for TCP (Linux does)"
        try:
            self._keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            return _self_test(self)
        except OSError as error:
            return f"the kernel refuses receive stamps ({error})"

    def sample(self) -> int:
        """Samples the offset again, counts a step of the wall clock, and returns the offset."""
        offset = clock_offset_ns()
        if abs(offset - self.offset_ns) > STEP_NS:
            self.steps += 1
        self.offset_ns = offset
        return offset

    def stamped(self, sock: socket.socket) -> None:
        """Asks the kernel for stamps on this socket, where this process uses them."""
        if self.kind == "kernel":
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()


def _self_test(clock: Clock) -> str | None:
    """None if kernel stamps on a loopback TCP connection are present and true, else why not."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(2.0)
        sender = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=2.0))
        reader = stack.enter_context(listener.accept()[0])
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        reader.settimeout(2.0)
        proofs = 0
        for _ in range(_TRIES):
            clock.sample()
            before = monotonic_ns()
            sender.send(b"x")
            _, ancillary, _, _ = reader.recvmsg(16, ANCILLARY_BYTES)
            after = monotonic_ns()
            if not ancillary:
                if proofs:
                    return "the kernel stamps only some reads"
                time.sleep(0.002)
                continue
            seconds, nanos = STAMP.unpack(ancillary[0][2])
            stamp = seconds * 1_000_000_000 + nanos - clock.offset_ns
            if not before - _MARGIN_NS <= stamp <= after + _MARGIN_NS:
                return (
                    f"the kernel's stamp is {max(before - stamp, stamp - after) / 1e6:.3f} ms off this process's clock"
                )
            proofs += 1
            if proofs == _PROOFS:
                clock.steps = 0
                return None
    return "the kernel gives no receive stamps on TCP"
