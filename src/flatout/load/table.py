"""Requests and arrivals of one load process as growing integer columns; the arrivals cost 21 bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from flatout.load.decode import Decoder
from flatout.load.samples import ARRIVAL_COLUMNS, DTYPES, REQUEST_COLUMNS, Samples

OTHER: Final = "other"
PIECE_BYTES: Final = 1 << 20
_FINISH_NAMES: Final = 100  # the column is one byte wide; no server has more


class Packed(msgspec.Struct, frozen=True):
    """Samples on their way between two processes: little columns of raw bytes instead of a compressed file."""

    columns: dict[str, bytes]
    finish_names: list[str]
    error_texts: list[str]
    request_ids: list[str]
    texts: list[str] | None

    def samples(self) -> Samples:
        arrays: dict[str, Any] = {n: np.frombuffer(c, dtype=DTYPES[n]).copy() for n, c in self.columns.items()}
        return Samples(
            **arrays,
            finish_names=self.finish_names,
            error_texts=self.error_texts,
            request_ids=self.request_ids,
            texts=self.texts,
        )


class Table:
    """Rows in the order in which requests were settled."""

    def __init__(self, *, keep_text: bool) -> None:
        self.requests: dict[str, array[int]] = {n: array("q") for n in REQUEST_COLUMNS}
        self.t_ns = array("q")
        self.running = array("i")
        self.id_tokens = array("i")
        self.text_len = array("i")
        self.kind = array("b")
        self.finish_names: list[str] = []
        self.error_texts: list[str] = []
        self.request_ids: list[str] = []
        self.texts: list[str] | None = [] if keep_text else None
        self._names: dict[tuple[int, str], int] = {}

    def index(self, names: list[str], name: str | None) -> int:
        """Position of `name` in `finish_names` or `error_texts`, added if new; -1 for None."""
        if name is None:
            return -1
        if names is self.finish_names and len(names) >= _FINISH_NAMES and (id(names), name) not in self._names:
            name = OTHER
        key = (id(names), name)
        if key not in self._names:
            names.append(name)
            self._names[key] = len(names) - 1
        return self._names[key]

    def add(self, row: dict[str, int], decoder: Decoder, request_id: str) -> None:
        """One request. `row`: its columns but for those that come from the decoder or from the table itself."""
        arrivals = len(decoder.t_ns)
        row |= {
            "first_token_ns": decoder.first_token_ns,
            "first_answer_ns": decoder.first_answer_ns,
            "last_token_ns": decoder.t_ns[-1] if arrivals else -1,
            "finish": self.index(self.finish_names, decoder.finish),
            "prompt_tokens": decoder.prompt,
            "cached_tokens": decoder.cached,
            "completion_tokens": decoder.completion,
            "reasoning_tokens": decoder.reasoning,
            "text_bytes": decoder.text_bytes,
            "choices": decoder.choices,
            "arrival_start": len(self.t_ns),
            "arrival_count": arrivals,
        }
        for name, column in self.requests.items():
            column.append(row[name])
        self.t_ns.extend(decoder.t_ns)
        self.running.extend(decoder.running_counts())
        self.id_tokens.extend(decoder.id_tokens)
        self.text_len.extend(decoder.text_len)
        self.kind.extend(decoder.kind)
        self.request_ids.append(request_id)
        if self.texts is not None:
            self.texts.append("".join(decoder.texts or ()))

    def take_arrivals(self) -> Iterator[tuple[str, bytes]]:
        """The columns of the arrivals in pieces of at most PIECE_BYTES, each column gone from here once it is through;
        what `pack` gives afterwards lacks them."""
        for name, attribute in zip(ARRIVAL_COLUMNS, ("t_ns", "running", "id_tokens", "text_len", "kind"), strict=True):
            column = getattr(self, attribute)
            setattr(self, attribute, array(column.typecode))
            step = PIECE_BYTES // column.itemsize
            for begin in range(0, len(column), step):
                piece = np.frombuffer(column, dtype=column.typecode)[begin : begin + step]
                yield name, piece.astype(DTYPES[name], copy=False).tobytes()

    def pack(self) -> Packed:
        """Everything so far, requests in the order in which they were sent."""
        send_ns = np.array(self.requests["send_ns"], dtype=np.int64)
        order = np.argsort(send_ns, kind="stable")
        columns = {n: np.array(c, dtype=np.int64)[order].astype(DTYPES[n]).tobytes() for n, c in self.requests.items()}
        arrivals = (self.t_ns, self.running, self.id_tokens, self.text_len, self.kind)
        for name, column in zip(ARRIVAL_COLUMNS, arrivals, strict=True):
            columns[name] = np.frombuffer(column, dtype=column.typecode).astype(DTYPES[name], copy=False).tobytes()
        return Packed(
            columns=columns,
            finish_names=self.finish_names,
            error_texts=self.error_texts,
            request_ids=[self.request_ids[i] for i in order],
            texts=None if self.texts is None else [self.texts[i] for i in order],
        )
