"""The same rows with those of many streams, each labelled as the sum over its streams."""

from __future__ import annotations

import json

from flatout.record import Record
from flatout.show.exports.localmaxxing import localmaxxing


def write(record: Record) -> str:
    return json.dumps(localmaxxing(record, aggregates=True), indent=1)
