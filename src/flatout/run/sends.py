"""Jobs for the load core out of prompts: request bodies, request ids, the spread of the first round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Literal

from flatout.engines.base import MAX_TOKENS
from flatout.engines.endpoint import Address
from flatout.load.job import RID_WIDTH, Endpoint, Job, Proxy, Stream, Timeouts
from flatout.protocol import PATHS, Shape, body

_RID_MARK: Final = "@" * RID_WIDTH
Content = str | Sequence[int]


def endpoint(address: Address, api: Literal["chat", "completions"]) -> Endpoint:
    """The load core's endpoint for an address of the target room."""
    proxy = address.proxy
    return Endpoint(
        scheme=address.scheme,
        host=address.host,
        port=address.port,
        path=address.base_path + PATHS[api],
        headers=tuple(address.headers),
        ca_file=address.ca_file,
        insecure=address.insecure,
        proxy=Proxy(proxy.host, proxy.port, proxy.authorization) if proxy else None,
    )


def request(shape: Shape, content: Content, max_tokens: int) -> tuple[bytes, int]:
    """One request's body and where its request id stands in it (-1: the engine takes none)."""
    fields = tuple((name, max_tokens if value == MAX_TOKENS else value) for name, value in shape.fields)
    shape = Shape(
        shape.api, shape.model, fields, shape.max_tokens_field, shape.id_field, shape.temperature, shape.extra_body
    )
    made = body(shape, content, max_tokens, request_id=_RID_MARK if shape.id_field else None)
    return made, (made.rfind(_RID_MARK.encode()) if shape.id_field else -1)


def first_lengths(streams: int, max_tokens: int, seed: int) -> list[int]:
    """Output lengths of the first round: i * max / N for i = 1..N, shuffled, so that restarts come evenly from the
    start (DESIGN, "The window"); one stream takes the full length. At least 1."""
    lengths = [max(1, round(i * max_tokens / streams)) for i in range(1, streams + 1)]
    random.Random(seed).shuffle(lengths)
    return lengths


def stream(shape: Shape, content: Content, max_tokens: int, first: int | None = None) -> Stream:
    """One stream that sends `content` at each restart, with `first` tokens of output in its first round."""
    made, at = request(shape, content, max_tokens)
    if first is None or first == max_tokens:
        return Stream(body=made, asked_tokens=max_tokens, rid_offset=at)
    first_made, first_at = request(shape, content, first)
    return Stream(
        body=made,
        asked_tokens=max_tokens,
        first_body=first_made,
        first_asked_tokens=first,
        rid_offset=at,
        first_rid_offset=first_at,
    )


def job(
    name: str,
    mode: Literal["closed", "once"],
    where: Endpoint,
    shape: Shape,
    streams: Sequence[Stream],
    timeouts: Timeouts,
    rid_prefix: str,
    max_requests: int | None = None,
) -> Job:
    return Job(
        name=name,
        mode=mode,
        api=shape.api,
        endpoint=where,
        timeouts=timeouts,
        streams=tuple(streams),
        rid_prefix=rid_prefix,
        max_requests=max_requests,
    )
