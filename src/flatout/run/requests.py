"""Requests: bodies and jobs for the load core, sending some once and waiting for them, and what came back."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from flatout.engines.base import MAX_TOKENS, Live, TargetError
from flatout.engines.endpoint import Address
from flatout.load.job import RID_WIDTH, Endpoint, Job, Proxy, Stream
from flatout.load.process import Outcome
from flatout.load.samples import CUT, FAILED, OK, REFUSED, Samples
from flatout.prompts.book import Prompt
from flatout.protocol import PATHS, Shape, body
from flatout.run.events import Gauges
from flatout.run.prompts import Content, content_of
from flatout.run.session import Session, Stopped

_RID_MARK: Final = "@" * RID_WIDTH


def endpoint(address: Address, api: Literal["chat", "completions"]) -> Endpoint:
    """The load core's endpoint for an address."""
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


def _body(shape: Shape, content: Content, max_tokens: int) -> tuple[bytes, int]:
    """One request's body and where its request id stands in it (-1: the engine takes none)."""
    fields = tuple((name, max_tokens if value == MAX_TOKENS else value) for name, value in shape.fields)
    mark = _RID_MARK if shape.id_field else None
    data = body(replace(shape, fields=fields), content, max_tokens, request_id=mark)
    return data, (data.rfind(_RID_MARK.encode()) if shape.id_field else -1)


def first_lengths(streams: int, max_tokens: int, seed: int) -> list[int]:
    """Output lengths of the first round: i * max / N for i = 1..N, shuffled, so that restarts come evenly from the
    start; one stream takes the full length. At least 1."""
    lengths = [max(1, round(i * max_tokens / streams)) for i in range(1, streams + 1)]
    random.Random(seed).shuffle(lengths)
    return lengths


def stream(shape: Shape, content: Content, max_tokens: int, first: int | None = None) -> Stream:
    """One stream that sends `content` at each restart, with `first` tokens of output in its first round."""
    data, at = _body(shape, content, max_tokens)
    if first is None or first == max_tokens:
        return Stream(body=data, asked_tokens=max_tokens, rid_offset=at)
    first_data, first_at = _body(shape, content, first)
    return Stream(
        body=data,
        asked_tokens=max_tokens,
        first_body=first_data,
        first_asked_tokens=first,
        rid_offset=at,
        first_rid_offset=first_at,
    )


def job(
    session: Session,
    name: str,
    mode: Literal["closed", "once"],
    streams: list[Stream],
    max_requests: int | None = None,
) -> Job:
    """A job against the session's server; request ids are unique over the run."""
    session.jobs += 1
    return Job(
        name=name,
        mode=mode,
        api=session.shape.api,
        endpoint=endpoint(session.target.address, session.shape.api),
        timeouts=session.options.timeouts,
        streams=tuple(streams),
        rid_prefix=f"flatout-{session.nonce[:8]}-{session.jobs}-",
        max_requests=max_requests,
    )


def answered(samples: Samples) -> bool:
    return samples.requests >= 1 and bool(np.all(samples.outcome == OK)) and bool(np.all(samples.first_token_ns >= 0))


def error_of(samples: Samples) -> str:
    """The first error of these requests in words."""
    for i in range(samples.requests):
        if samples.error[i] >= 0:
            return samples.error_texts[int(samples.error[i])]
    return "the answer ended without a token"


def ttft_ms(samples: Samples) -> float:
    return float(samples.first_token_ns[0] - samples.send_ns[0]) / 1e6


def hang_up(session: Session, outcome: Outcome) -> None:
    """Tells the engine to stop what was cut, where closing the stream is not enough for it."""
    samples = outcome.samples
    unfinished = (samples.outcome == CUT) | ((samples.outcome == FAILED) & (samples.finish < 0))
    left = [samples.request_ids[i] for i in np.flatnonzero(unfinished)]
    left = [request_id for request_id in left if request_id]
    if left and session.shape.id_field:
        try:
            session.target.adapter.cancel(left)
        except TargetError as error:
            session.warn(f"the engine's cancel call failed: {error}")


def once(session: Session, name: str, streams: list[Stream], prompt_tokens: int) -> Outcome:
    """Sends each body once, waits for all to end (bounded by the requests' own limits), and returns what came.

    `prompt_tokens`: length of each prompt, for the account where the server counts none.

    Raises Stopped if the user stops or skips meanwhile, after hanging up.
    """
    session.pool.start(job(session, name, "once", streams))
    limits = session.options.timeouts
    longest_s = limits.connect_s + limits.total_s + 30.0
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        status = session.pool.wait(0.5)
        if status.ended:
            break
        session.listener(Gauges(None, in_flight=status.in_flight, asked=len(streams), machine=session.machine_now()))
        if session.control.stopping or session.control.take_skip():
            _account(session, session.pool.stop(), prompt_tokens)
            raise Stopped(skip=not session.control.stopping)
    return _without_refusals(_account(session, session.pool.stop(), prompt_tokens))


def _account(session: Session, outcome: Outcome, prompt_tokens: int) -> Outcome:
    """Every end of a job: its tokens are counted, and what it left behind is cancelled."""
    session.spend(outcome.samples, prompt_tokens)
    hang_up(session, outcome)
    return outcome


def _without_refusals(outcome: Outcome) -> Outcome:
    """A request that a rate limit refused and that was answered later counts by its last try."""
    refused = outcome.samples.outcome == REFUSED
    if not refused.any():
        return outcome
    kept = outcome.samples if refused.all() else outcome.samples.select(~refused)
    return replace(outcome, samples=kept, refused=int(refused.sum()))


def send_alone(session: Session, name: str, prompt: Prompt, max_tokens: int = 1) -> Outcome:
    """Sends one prompt and waits for its end. Cached tokens that usage does not tell are taken from the server's own
    prefix-cache counter, where it has one: nothing else runs, so its difference is this prompt's."""
    before = session.live()
    streams = [stream(session.shape, content_of(prompt), max_tokens)]
    outcome = once(session, name, streams, prompt.asked_tokens)
    samples = outcome.samples
    if samples.requests == 1 and samples.cached_tokens[0] < 0 and before is not None:
        hits = _prefix_hits(before, session.live())
        if hits is not None and 0 <= hits <= max(int(samples.prompt_tokens[0]), 0):
            samples.cached_tokens[0] = hits
    return outcome


def _prefix_hits(before: Live, after: Live | None) -> int | None:
    if after is None or before.prefix_hits_total is None or after.prefix_hits_total is None:
        return None
    return round(after.prefix_hits_total - before.prefix_hits_total)
