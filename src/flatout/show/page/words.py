"""The definitions that stand at the end of the page, in short; docs/definitions.md has them in full."""

from __future__ import annotations

from typing import Final

DEFINITIONS: Final = (
    ("TTFT", "From the first byte of the request to the first generated token, on an open connection. In a decode cell "
     "contexts are in the prefix cache (warm); cold is a prompt that the server never saw."),
    ("Prefill tok/s", "Prompt tokens that were not cached over the TTFT of a cold prompt, alone on the server; median "
     "of at least three different prompts."),
    ("Total tok/s", "Tokens that arrived in the window over the window's own length. Its end is one of few times fixed "
     "before it opens, never an arrival."),
    ("TPOT", "(last token − first token) / tokens after the first arrival, for each request's part in the window."),
    ("Per request tok/s", "1 / TPOT, median over the requests."),
    ("Time between tokens (ITL)", "Token-weighted: an arrival with k tokens after a gap g counts k times as g/k."),
    ("Longest gap", "The longest silence between two arrivals of one request."),
    ("Average active", "Time-weighted over the window: the client's own requests in flight, and the server's running "
     "count where it tells."),
    ("Completed requests", "Requests that ended, with a finish reason, inside the window."),
    ("Mean depth", "Context and output so far of the decoding requests, over the window."),
    ("Acceptance length", "Speculative decoding: tokens per sequence and verification step, 1 + accepted / drafts."),
    ("Energy per token", "Energy of the accelerators in the window over the output tokens in it."),
    ("Burst tok/s", "Fixed count: output tokens over the time from the first send to the last end."),
    ("± 95 %", "The 95 % interval, as its larger half: batches within the window, or the spread between repeats."),
)  # fmt: skip
TOKENS: Final = (
    "Tokens are counted, best first, from running counts in the events, token ids, the usage at a request's end, a "
    "tokenizer over the whole text, or the events themselves; each cell names which."
)
