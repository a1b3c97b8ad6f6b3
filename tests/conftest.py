"""What tests of several files ask for by name, and what holds for all of them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.chromium import browser

__all__ = ["browser"]

settings.register_profile("flatout", deadline=None)  # an example slow on a busy machine is no fault
settings.load_profile("flatout")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background ignores Ctrl-C, and every process below inherits that: here it is a person's again.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens sites on databases of their own (`site_client.opened`), and closes them behind the test."""
    from tests.site_client import opened

    sites: list[Any] = []

    def make(folder: Path | None = None, **more: Any) -> Any:
        sites.append(opened(folder or tmp_path, **more))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(open_site: Callable[..., Any]) -> Any:
    """A site on SQLite, without limits."""
    return open_site()


MEASURES = (
    "test_load_faults", "test_load_pauses", "test_load_process", "test_load_tls", "test_load_wire", "test_rig_engine",
    "test_rig_faults", "test_run_", "test_calibrate", "test_truth", "test_seed_page", "test_demo",
)  # fmt: skip
"""Files whose every test measures time, or starts what does: they run alone, after the others (`make test`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).name.startswith(MEASURES):
            item.add_marker(pytest.mark.timing)
