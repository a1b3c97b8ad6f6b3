"""Whose name a record is published under: the token, from a file or the environment, never from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flatout.publish.errors import PublishError

VARIABLE: Final = "FLATOUT_TOKEN"
_SHAPE: Final = re.compile(r"flatout_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Token:
    """`source`: where it was found, for people."""

    text: str = field(repr=False)
    source: str


def default_file(environment: Mapping[str, str]) -> Path:
    """The user's own token file."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "flatout" / "token"


def find(file: Path | None, environment: Mapping[str, str]) -> Token:
    """The token from `file`, else from FLATOUT_TOKEN, else from the user's token file.

    Raises PublishError: there is none, it cannot be read, others can read it, or it is no token of a flatout site.
    """
    if file is None and environment.get(VARIABLE):
        return Token(_checked(environment[VARIABLE].strip(), VARIABLE), VARIABLE)
    own = default_file(environment)
    if file is None and not own.exists():
        raise PublishError(
            f"there is no token: make one on the site (Account) or there with 'flatout site token add NAME', then put "
            f"it into {own} (chmod 600), into {VARIABLE}, or into a file of --token-file. Nothing was sent"
        )
    return _read(file if file is not None else own)


def _read(path: Path) -> Token:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise PublishError(f"the token file {path} cannot be read: {error.strerror}. Nothing was sent") from error
    except UnicodeDecodeError:
        raise PublishError(f"{path} holds no token: it is no text. Nothing was sent") from None
    if mode & 0o077:
        raise PublishError(f"other users may read the token in {path}: chmod 600 {path}. Nothing was sent")
    return Token(_checked(text, str(path)), str(path))


def _checked(text: str, source: str) -> str:
    """Another service's key must never reach a site by mistake."""
    if not _SHAPE.fullmatch(text):
        raise PublishError(
            f"what {source} holds is no token of a flatout site (flatout_ and 43 characters). Nothing was sent"
        )
    return text
