"""Every status and flag that a user can see, as data: one word, and one sentence to act on."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Status(StrEnum):
    """What became of a cell; exactly one each."""

    VALID = "valid"
    REQUESTS_QUEUED = "requests_queued"
    DOUBTFUL = "doubtful"
    NO_STEADY_STATE = "no_steady_state"
    OVER_CAPACITY = "over_capacity"
    OVER_LENGTH = "over_length"
    NOT_RUN = "not_run"
    FAILED = "failed"


class Flag(StrEnum):
    """What a reader must know about a figure; any number each."""

    CONTAMINATED = "contaminated"
    UNDERFILLED = "underfilled"
    CACHE_WARM = "cache_warm"
    CACHE_COLD = "cache_cold"
    COLD_UNVERIFIED = "cold_unverified"
    EARLY_STOP = "early_stop"
    LOW_SAMPLES = "low_samples"
    CLIENT_LIMITED = "client_limited"
    THROTTLED = "throttled"
    DRIFTING = "drifting"
    PREEMPTED = "preempted"
    TOKENS_ESTIMATED = "tokens_estimated"
    COUNTERS_DISAGREE = "counters_disagree"
    LOOPING = "looping"


DOUBTFUL_FLAGS: Final[frozenset[Flag]] = frozenset(
    {Flag.CONTAMINATED, Flag.CLIENT_LIMITED, Flag.CACHE_WARM, Flag.COUNTERS_DISAGREE, Flag.LOOPING}
)
"""Flags that make a measured cell `doubtful`; the others inform."""

MEASURED: Final[frozenset[Status]] = frozenset({Status.VALID, Status.REQUESTS_QUEUED, Status.DOUBTFUL})
"""Statuses whose cells show numbers."""

SENTENCES: Final[Mapping[Status | Flag, str]] = MappingProxyType(
    {
        Status.VALID: "Measured in a steady state, and no check failed: use the number.",
        Status.REQUESTS_QUEUED: "The server did not run all requests at once: read the number as that of the requests "
        "that really ran, or raise the server's limit of running requests.",
        Status.DOUBTFUL: "Measured, but a check failed: do not publish the number before its flags are cleared.",
        Status.NO_STEADY_STATE: "The load did not become steady in time, so there is no valid number: give the cell "
        "more time (--time), or look at the server's log.",
        Status.OVER_CAPACITY: "The cell needs more KV tokens than the server has: give the server more KV cache, or "
        "ask for fewer requests, shorter contexts or shorter outputs.",
        Status.OVER_LENGTH: "Context and output together are longer than the server allows for one request: raise its "
        "model length (llama.cpp: context per slot), or choose a shorter context.",
        Status.NOT_RUN: "The cell was planned but not measured; its reason says why, and --resume measures it.",
        Status.FAILED: "The cell broke off with an error: the server's own words stand beside it.",
        Flag.CONTAMINATED: "The server ran more requests than this test sent: stop other clients, or let it drain, and "
        "measure again.",
        Flag.UNDERFILLED: "Fewer requests ran than asked for most of the window: look for errors, rate limits or slow "
        "restarts, and read the number as one for fewer requests.",
        Flag.CACHE_WARM: "The prompt should have been new to the server but part of it was cached, so prefill looks "
        "too fast: empty the prefix cache or use another seed.",
        Flag.CACHE_COLD: "The context should have been in the prefix cache but was not, so prefill work is inside the "
        "decode number: switch the prefix cache on, or give it more room.",
        Flag.COLD_UNVERIFIED: "The server does not report cached tokens, so nothing proves that the prompt was cold: "
        "switch its cache report on (SGLang --enable-cache-report, vLLM --enable-prompt-tokens-details).",
        Flag.EARLY_STOP: "Answers ended before the asked length: let the server honour ignore_eos, or read the number "
        "as one for shorter answers.",
        Flag.LOW_SAMPLES: "Too few samples for some figures: measure longer (--time) for tighter ones.",
        Flag.CLIENT_LIMITED: "This machine may have been too slow to read the streams: run the client on an idle or "
        "larger machine, and measure again.",
        Flag.THROTTLED: "The hardware slowed itself down for heat or power: improve the cooling, or raise the power "
        "limit.",
        Flag.DRIFTING: "The speed changed while it was measured: warm up longer, look for throttling or other load, "
        "and measure again.",
        Flag.PREEMPTED: "The server threw running requests out of its KV cache and computed them again: give it more "
        "KV cache or send fewer requests.",
        Flag.TOKENS_ESTIMATED: "Part of the tokens was not counted by the server: switch usage in every event on, or "
        "read the rate as an estimate.",
        Flag.COUNTERS_DISAGREE: "Token counts from different sources differ by over 1 %: look for other traffic on the "
        "server or a proxy that alters the stream, and measure again.",
        Flag.LOOPING: "The model repeated itself word for word, which speculative decoding and caches make look fast: "
        "use other prompts or sampling settings.",
    }
)


def sentence(word: Status | Flag) -> str:
    """The one sentence for a status or flag."""
    return SENTENCES[word]
