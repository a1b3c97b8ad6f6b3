"""The columnar samples of one piece of load: every request and every arrival, as integers.

`Table` grows in the load process, `Packed` travels, `Samples` is what everything else reads.

Two tables. *Requests*: one row a request. *Arrivals*: one row a server-sent event with generated content, in order of
time within its request; request r owns rows `arrival_start[r] : arrival_start[r] + arrival_count[r]`.
Times are CLOCK_MONOTONIC nanoseconds; -1 is "did not happen" or "not told", never 0.
"""

from __future__ import annotations

import io
import json
import zipfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
I8 = npt.NDArray[np.int8]

# outcome of a request
OK: Final = 0  # ended with a finish reason
CUT: Final = 1  # closed by us (window over)
FAILED: Final = 2  # error, see `error`
REFUSED: Final = 3  # 429/503 answered before any token; sent again later

# kind of an arrival (bits)
ANSWER: Final = 1
REASONING: Final = 2
TOOL: Final = 4
IDS_ONLY: Final = 8  # token ids without text

OTHER: Final = "other"
PIECE_BYTES: Final = 1 << 20
_FINISH_NAMES: Final = 100  # the column is one byte wide; no server has more
_LEVEL: Final = 2  # of zlib: a third of numpy's own time (level 6), for columns of integers as small


@dataclass(slots=True)
class Samples:
    """See the module's text. Shapes: R requests, A arrivals.

    `connect_ns`: duration of TCP and TLS set-up of the connection if it was opened for this request, else -1.
    `finish` and `error` index into `finish_names` and `error_texts` (-1: none). `running_tokens`: the request's
    completion count that the server reported in this event (continuous usage, llama.cpp's predicted_n), -1 if none.
    `id_tokens`: token ids in this event, -1 if the server sends none. `text_len`: bytes of generated text (UTF-8).
    `completion_tokens` etc.: from usage. `choices`: highest choice index seen + 1.
    `request_ids`: per request, "" if none. `texts`: generated text per request; never written to the permanent file.
    """

    stream: I32
    round: I32
    send_ns: I64
    connect_ns: I64
    first_byte_ns: I64
    first_token_ns: I64
    first_answer_ns: I64
    last_token_ns: I64
    end_ns: I64
    http_status: I32
    outcome: I8
    finish: I8
    asked_tokens: I32
    prompt_tokens: I32
    cached_tokens: I32
    completion_tokens: I32
    reasoning_tokens: I32
    text_bytes: I64
    choices: I32
    error: I32
    arrival_start: I64
    arrival_count: I32
    t_ns: I64
    running_tokens: I32
    id_tokens: I32
    text_len: I32
    kind: I8
    finish_names: list[str] = field(default_factory=list)
    error_texts: list[str] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    texts: list[str] | None = None

    @property
    def requests(self) -> int:
        return len(self.send_ns)

    def arrivals_of(self, request: int) -> slice:
        start = int(self.arrival_start[request])
        return slice(start, start + int(self.arrival_count[request]))

    def select(self, keep: npt.NDArray[np.bool_]) -> Samples:
        """The requests that `keep` (one flag a request) marks; arrivals stay where they are."""
        rows = np.flatnonzero(keep)
        columns: dict[str, npt.NDArray[np.signedinteger]] = {n: getattr(self, n)[rows] for n in REQUEST_COLUMNS}
        columns |= {n: getattr(self, n) for n in ARRIVAL_COLUMNS}
        return Samples(
            **columns,
            finish_names=self.finish_names,
            error_texts=self.error_texts,
            request_ids=[self.request_ids[i] for i in rows] if self.request_ids else [],
            texts=None if self.texts is None else [self.texts[i] for i in rows],
        )

    def to_bytes(self, *, with_text: bool = False) -> bytes:
        """The tables as a compressed .npz (columns by name, one JSON member `meta` for names)."""
        meta = {"finish_names": self.finish_names, "error_texts": self.error_texts, "request_ids": self.request_ids}
        if with_text and self.texts is not None:
            meta["texts"] = self.texts
        arrays: dict[str, npt.NDArray[np.generic]] = {n: getattr(self, n) for n in REQUEST_COLUMNS + ARRIVAL_COLUMNS}
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for name, column in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, column, allow_pickle=False)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Samples:
        """Raises ValueError if the bytes are no samples of ours."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                columns = {n: archive[n] for n in REQUEST_COLUMNS + ARRIVAL_COLUMNS}
                meta = json.loads(archive["meta"].tobytes())
        except Exception as error:
            raise ValueError(f"not a flatout samples file: {error}") from error
        return cls(**columns, **meta)

    @classmethod
    def read(cls, path: Path) -> Samples:
        return cls.from_bytes(path.read_bytes())

    @classmethod
    def empty(cls) -> Samples:
        return from_rows([], [])


DTYPES: Final[dict[str, type[np.signedinteger]]] = {
    f.name: {"I64": np.int64, "I32": np.int32, "I8": np.int8}[str(f.type)]  # type: ignore[misc]
    for f in fields(Samples)
    if str(f.type) in ("I64", "I32", "I8")
}
"""The integer type of each column."""
_COLUMNS: Final = tuple(DTYPES)
REQUEST_COLUMNS: Final = _COLUMNS[: _COLUMNS.index("t_ns")]
ARRIVAL_COLUMNS: Final = _COLUMNS[_COLUMNS.index("t_ns") :]
_TYPECODES: Final[dict[type[np.signedinteger], str]] = {np.int64: "q", np.int32: "i", np.int8: "b"}


class Packed(msgspec.Struct, frozen=True):
    """Samples on their way between two processes: little columns of raw bytes instead of a compressed file."""

    columns: dict[str, bytes]
    finish_names: list[str]
    error_texts: list[str]
    request_ids: list[str]
    texts: list[str] | None

    def samples(self) -> Samples:
        names = {name: getattr(self, name) for name in ("finish_names", "error_texts", "request_ids", "texts")}
        columns: dict[str, Any] = {n: np.frombuffer(c, dtype=DTYPES[n]).copy() for n, c in self.columns.items()}
        return Samples(**columns, **names)


class Table:
    """Requests and arrivals of one load process as growing integer columns, in the order in which requests were
    settled; the arrivals cost 21 bytes each."""

    def __init__(self, *, keep_text: bool) -> None:
        self.requests: dict[str, array[int]] = {n: array("q") for n in REQUEST_COLUMNS}
        self.arrivals: dict[str, array[int]] = {n: array(_TYPECODES[DTYPES[n]]) for n in ARRIVAL_COLUMNS}
        self.finish_names: list[str] = []
        self.error_texts: list[str] = []
        self.request_ids: list[str] = []
        self.texts: list[str] | None = [] if keep_text else None
        self._indices: dict[tuple[int, str], int] = {}

    def index(self, names: list[str], name: str | None) -> int:
        """Position of `name` in `finish_names` or `error_texts`, added if new; -1 for None."""
        if name is None:
            return -1
        if names is self.finish_names and len(names) >= _FINISH_NAMES and (id(names), name) not in self._indices:
            name = OTHER
        key = (id(names), name)
        if key not in self._indices:
            names.append(name)
            self._indices[key] = len(names) - 1
        return self._indices[key]

    def add(self, row: dict[str, int], arrivals: dict[str, array[int]], request_id: str, text: str) -> None:
        """One request: its columns but for those of its arrivals' place, and the columns of its arrivals."""
        row |= {"arrival_start": len(self.arrivals["t_ns"]), "arrival_count": len(arrivals["t_ns"])}
        for name, column in self.requests.items():
            column.append(row[name])
        for name, column in self.arrivals.items():
            column.extend(arrivals[name])
        self.request_ids.append(request_id)
        if self.texts is not None:
            self.texts.append(text)

    def take_arrivals(self) -> Iterator[tuple[str, bytes]]:
        """The columns of the arrivals in pieces of at most PIECE_BYTES, each column gone from here once it is through;
        what `pack` gives afterwards lacks them."""
        for name in ARRIVAL_COLUMNS:
            column, self.arrivals[name] = self.arrivals[name], array(self.arrivals[name].typecode)
            step = PIECE_BYTES // column.itemsize
            for begin in range(0, len(column), step):
                yield name, np.frombuffer(column, dtype=DTYPES[name])[begin : begin + step].tobytes()

    def pack(self) -> Packed:
        """Everything so far, requests in the order in which they were sent."""
        order = np.argsort(np.array(self.requests["send_ns"], dtype=np.int64), kind="stable")
        columns = {n: np.array(c, dtype=DTYPES[n])[order].tobytes() for n, c in self.requests.items()}
        return Packed(
            columns=columns | {n: c.tobytes() for n, c in self.arrivals.items()},
            finish_names=self.finish_names,
            error_texts=self.error_texts,
            request_ids=[self.request_ids[i] for i in order],
            texts=None if self.texts is None else [self.texts[i] for i in order],
        )


def from_rows(
    requests: list[tuple[int, ...]],
    arrivals: list[tuple[int, ...]],
    *,
    finish_names: list[str] | None = None,
    error_texts: list[str] | None = None,
    request_ids: list[str] | None = None,
    texts: list[str] | None = None,
) -> Samples:
    """Samples from rows in the order of REQUEST_COLUMNS and ARRIVAL_COLUMNS (tests, and small results)."""
    columns: dict[str, npt.NDArray[np.signedinteger]] = {}
    for names, rows in ((REQUEST_COLUMNS, requests), (ARRIVAL_COLUMNS, arrivals)):
        table = np.array(rows, dtype=np.int64).reshape(len(rows), len(names))
        for i, name in enumerate(names):
            columns[name] = table[:, i].astype(DTYPES[name])
    return Samples(
        **columns,
        finish_names=finish_names or [],
        error_texts=error_texts or [],
        request_ids=request_ids or [],
        texts=texts,
    )


def merge(parts: list[Samples]) -> Samples:
    """Samples of several load processes as one: rows concatenated, indices moved; streams keep their numbers."""
    parts = [p for p in parts if p.requests] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    finish_names: list[str] = []
    error_texts: list[str] = []
    columns: dict[str, list[npt.NDArray[np.signedinteger]]] = {n: [] for n in REQUEST_COLUMNS + ARRIVAL_COLUMNS}
    arrivals_before = 0
    for part in parts:
        for name in REQUEST_COLUMNS + ARRIVAL_COLUMNS:
            column = getattr(part, name)
            if name == "arrival_start":
                column = column + arrivals_before
            elif name == "finish":
                column = _remap(column, part.finish_names, finish_names)
            elif name == "error":
                column = _remap(column, part.error_texts, error_texts)
            columns[name].append(column)
        arrivals_before += len(part.t_ns)
    texts = None if any(p.texts is None for p in parts) else [t for p in parts for t in (p.texts or [])]
    return Samples(
        **{n: np.concatenate(c).astype(DTYPES[n]) for n, c in columns.items()},
        finish_names=finish_names,
        error_texts=error_texts,
        request_ids=[r for p in parts for r in p.request_ids],
        texts=texts,
    )


def _remap(column: npt.NDArray[np.signedinteger], names: list[str], into: list[str]) -> npt.NDArray[np.signedinteger]:
    table = []
    for name in names:
        if name not in into:
            into.append(name)
        table.append(into.index(name))
    lookup = np.array([*table, -1], dtype=np.int64)  # index -1 stays -1
    moved: npt.NDArray[np.signedinteger] = lookup[column]
    return moved
