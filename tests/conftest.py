"""What tests of several files ask for by name."""

from tests.chromium import browser

__all__ = ["browser"]
