"""What tests of several files ask for by name, and what holds for all of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.chromium import browser

__all__ = ["browser"]

settings.register_profile("flatout", deadline=None)  # an example slow on a busy machine is no fault
settings.load_profile("flatout")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background ignores Ctrl-C, and every process below inherits that: here it is a person's again.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEASURES = ("test_load_", "test_rig_", "test_run_", "test_calibrate", "test_truth", "test_seed_page", "test_demo")
"""Files whose every test measures time, or starts what does: they run alone, after the others (`make test`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).name.startswith(MEASURES):
            item.add_marker(pytest.mark.timing)
