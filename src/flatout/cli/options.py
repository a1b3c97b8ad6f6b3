"""What the commands share: how an option is declared, how a command ends, and words that several of them read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TextIO

import typer

P = ParamSpec("P")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USE: Final = 2
STDOUT: Final = Path("-")


class UseError(Exception):
    """What was typed cannot be done; the text says what to type instead."""


def option(text: str, value: str | None = None, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option with its help. `value`: the word for its value, "" for a flag; `panel`: where the help has it."""
    return typer.Option(*names, help=text, metavar=value, rich_help_panel=panel, **more)


def flag(text: str, *names: str, **more: Any) -> Any:
    return option(text, "", *names, **more)


Json = Annotated[bool, flag("As JSON.", "--json")]
Markdown = Annotated[bool, flag("Markdown, ready to paste.", "--md")]
Plain = Annotated[bool, flag("No colour, no terminal control.", "--plain")]


def command(function: Callable[P, int]) -> Callable[P, None]:
    """A command out of a function that returns its exit code. Foreseen trouble is one sentence on stderr."""

    @wraps(function)
    def ended(*args: P.args, **typed: P.kwargs) -> None:
        try:
            code = function(*args, **typed)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = EXIT_FAILED
        except KeyboardInterrupt:
            code = sorry("stopped before anything was measured", EXIT_FAILED)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            code = sorry(f"{error.strerror or error}{where}", EXIT_FAILED)
        except Exception as error:
            if not type(error).__module__.startswith("flatout."):
                raise
            code = sorry(error, _exit_code(error))
        raise typer.Exit(code)

    return ended


def _exit_code(error: Exception) -> int:
    """flatout's own errors speak to the person: of what was typed, unless a server or a site failed."""
    from flatout.engines.base import TargetError

    return EXIT_FAILED if isinstance(error, TargetError) and error.kind != "model" else EXIT_USE


def sorry(what: object, code: int) -> int:
    say(f"flatout: {what}")
    return code


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(text: str, stream: TextIO) -> None:
    """Text on a stream that may not know our signs."""
    from flatout.show.safe import for_encoding

    stream.write(for_encoding(text, getattr(stream, "encoding", None)))
    stream.flush()


def count(number: int, thing: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def cores_of(text: str | None, name: str) -> tuple[int, ...] | None:
    """Cores such as `1` or `2,3` that this process may use. `name`: the option's. Raises UseError."""
    if text is None:
        return None
    try:
        cores = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UseError(f"{name} takes numbers, such as 1 or 2,3") from None
    have = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    if not set(cores) <= have:
        raise UseError(f"{name} {text}: this process may use {', '.join(map(str, sorted(have)))}")
    return cores
