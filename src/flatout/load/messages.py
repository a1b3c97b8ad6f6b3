"""What the conductor's process and a load process say to each other: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from flatout.load.job import Counts, Job, SelfCheck, Status
from flatout.load.samples import Packed

LENGTH: Final = struct.Struct("<Q")


class Begin(msgspec.Struct, frozen=True, tag=True):
    """A job; `bodies` Body messages follow. The streams of `job` have no bodies: `places` has, for each of them, the
    numbers of its body and of its first body (-1: none), so that equal ones travel once. `numbers`: of the streams."""

    job: Job
    numbers: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    bodies: int


class Body(msgspec.Struct, frozen=True, tag=True):
    data: bytes


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Every process is connected: send."""


class Count(msgspec.Struct, frozen=True, tag=True):
    t0_ns: int
    bin_ns: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Close what is in flight and hand over the samples."""


class Quit(msgspec.Struct, frozen=True, tag=True):
    pass


class Hello(msgspec.Struct, frozen=True, tag=True):
    clock: str
    reason: str | None


class Accepted(msgspec.Struct, frozen=True, tag=True):
    pass


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The job cannot even begin here (limits of this machine, settings of no use)."""

    reason: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


class Launched(msgspec.Struct, frozen=True, tag=True):
    launch_ns: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    status: Status


class Counted(msgspec.Struct, frozen=True, tag=True):
    counts: Counts


class Working(msgspec.Struct, frozen=True, tag=True):
    """Still decoding after Stop."""


class Piece(msgspec.Struct, frozen=True, tag=True):
    """A part of a column of the samples. They come in order, before the result: no column is packed as a whole."""

    column: str
    data: bytes


class Result(msgspec.Struct, frozen=True, tag=True):
    """The end of a job. `packed`: the samples but for the columns that went before as pieces."""

    packed: Packed
    check: SelfCheck
    launch_ns: int
    error: str | None


class Crashed(msgspec.Struct, frozen=True, tag=True):
    """A fault in the process itself; nothing follows."""

    traceback: str


ToChild = Begin | Body | Launch | Count | Stop | Quit
ToParent = Hello | Accepted | Rejected | Ready | Launched | Progress | Counted | Working | Piece | Result | Crashed

_encoder: Final = msgspec.msgpack.Encoder()
decode_to_child: Final = msgspec.msgpack.Decoder(ToChild).decode
decode_to_parent: Final = msgspec.msgpack.Decoder(ToParent).decode


def pack(message: ToChild | ToParent) -> bytes:
    """A message as it goes over the wire."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)) + data


class Inbox:
    """Whole messages out of a stream of bytes, however it was cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        messages = []
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            end = LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(bytes(memoryview(self._buffer)[LENGTH.size : end]))
            del self._buffer[:end]
        return messages
