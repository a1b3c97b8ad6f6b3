"""Real-time priority while a job runs, where the system allows it (root, or CAP_SYS_NICE)."""

from __future__ import annotations

import os
from typing import Final, Literal

Priority = Literal["real-time", "normal"]
_LEAST: Final = 1
"""The lowest real-time priority: above every ordinary process, below all else that is real-time."""


def take() -> Priority:
    """Puts this thread before ordinary processes, and says whether that was allowed.

    A server that computes on every core otherwise lets the reader wait for tens of milliseconds, and tokens that came
    apart are then read together. The reader needs a few microseconds a token; the kernel's own limit on real-time work
    (95 % of the time) stays.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "normal"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_LEAST))
    except OSError:
        return "normal"
    return "real-time"


def give_back() -> None:
    """An ordinary process again: decoding what is left must not hold up anyone."""
    if hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) == os.SCHED_FIFO:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
