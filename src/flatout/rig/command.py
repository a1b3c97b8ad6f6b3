"""`flatout rig`: every knob of RigConfig as an option."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

from flatout.rig.config import HINTS, ConfigError, RigConfig, profile_from_seed


def parser() -> argparse.ArgumentParser:
    """One option a knob (`decode_tok_s` → `--decode-tok-s`), read as JSON where it is JSON, else as a word."""
    options = argparse.ArgumentParser(
        prog="flatout rig",
        description="A server of exactly known speed. It logs what it really sent (GET /rig/log) and takes new knobs "
        "while it runs (POST /rig/control). Tables are rows in JSON; docs/rig.md has examples.",
    )
    notes = _notes()
    options.add_argument("--profile", type=Path, help="take the speeds of a published matrix (JSON)")
    for field in dataclasses.fields(RigConfig):
        name = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            text = notes.get(field.name, "").replace("%", "%%")
            options.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            kinds = get_args(HINTS[field.name])
            choices = "" if not kinds or not isinstance(kinds[0], str) else f"{' | '.join(map(str, kinds))}; "
            shown = "off" if field.default is None or field.default in ("", ()) else field.default
            text = f"{notes.get(field.name, '')} ({choices}default: {shown})".strip().replace("%", "%%")
            options.add_argument(name, default=None, metavar="VALUE", help=text)
    return options


def _notes() -> dict[str, str]:
    """What each knob is, from the comment behind it in `config.py`: said once, there."""
    lines = inspect.getsource(RigConfig).splitlines()
    matches = [re.match(r"    (\w+): [^#]*#\s*(.+)", line) for line in lines]
    return {match[1]: match[2] for match in matches if match}


def config_of(words: list[str]) -> RigConfig:
    """The knobs out of what was typed. Raises ConfigError; SystemExit as argparse does."""
    typed = vars(parser().parse_args(words))
    profile = typed.pop("profile")
    try:
        knobs: dict[str, Any] = dict(profile_from_seed(profile)) if profile else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--profile {profile}: no published matrix that can be read: {error}") from error
    knobs |= {name: _value(name, value) for name, value in typed.items() if value is not None}
    return RigConfig.from_dict(knobs)


def _value(name: str, typed: str | bool) -> Any:
    if isinstance(typed, bool) or name in _WORDS:
        return typed
    try:
        return json.loads(typed)
    except ValueError:
        return typed


_WORDS = {f.name for f in dataclasses.fields(RigConfig) if isinstance(f.default, str) or HINTS[f.name] == str | None}


def main(words: list[str]) -> int:
    """Serves until Ctrl-C or SIGTERM; prints where. Returns the exit code."""
    from flatout.rig.server import RigServer, serve

    try:
        config = config_of(words)
    except ConfigError as error:
        print(f"flatout rig: {error}", file=sys.stderr)
        return 2
    print(f"flatout rig: {config.dialect}, model {config.model}; Ctrl-C ends it", file=sys.stderr)
    serve(RigServer(config), ready=lambda server: print(server.url, flush=True))
    return 0
