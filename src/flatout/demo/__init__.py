"""The embedded engine: llama.cpp's own server with a random-weight hybrid model, for `flatout demo` and our tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EngineMissing(RuntimeError):
    """A package of the `engine` extra is not installed; the message says how to install it."""


@contextmanager
def needs_extra() -> Iterator[None]:
    """Around an import from the extra: an ImportError becomes EngineMissing."""
    try:
        yield
    except ImportError as error:
        raise EngineMissing(
            f"The embedded engine needs packages that are not installed ({error}). "
            "Install them with: pip install 'flatout[engine]'"
        ) from error
