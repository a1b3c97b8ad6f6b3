"""What tests of several files ask for by name, and what holds for all of them."""

from __future__ import annotations

import signal

from tests.chromium import browser

__all__ = ["browser"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background ignores Ctrl-C, and every process below inherits that: here it is a person's again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
