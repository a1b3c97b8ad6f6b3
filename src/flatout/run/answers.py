"""Questions to the samples of a few requests."""

from __future__ import annotations

import numpy as np

from flatout.load.samples import OK, Samples


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
