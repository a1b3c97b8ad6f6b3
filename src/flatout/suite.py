"""Named test suites: which contexts, how many at once, how long. Versioned; a changed suite gets a new version."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

K: Final = 1024
Context = int | Literal["max", "full"]
"""Tokens, or `max`: the longest that leaves room for the output, or `full`: the model's whole length less 64."""
PromptMode = Literal["own", "shared"]


class SuiteError(Exception):
    """A suite that cannot be run; the text says which entry and what is allowed."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What is measured; a name that ends in `*` is a named suite with something changed by hand.

    Contexts in tokens; `time_s` is the window's longest (and, with `precision` None, only) length.

    `precision`: relative half-width of the 95 % interval at which a cell may end early, not before `min_time_s`.
    `prefill_samples`: cold prompts per context. `skip_queued`: leave out cells with more streams than the server runs.
    """

    name: str
    version: int
    prefill: tuple[Context, ...]
    decode: tuple[Context, ...]
    concurrency: tuple[int, ...]
    time_s: float
    max_output: int
    min_time_s: float = 5.0
    precision: float | None = None
    prompts: PromptMode = "own"
    prefill_samples: int = 3
    skip_queued: bool = False
    about: str = ""

    @property
    def label(self) -> str:
        """`standard/1`, with `+shared` where all streams share one context: another question, so another name."""
        name, changed = self.name.removesuffix("*"), ", changed" if self.name.endswith("*") else ""
        return f"{name}/{self.version}" + ("+shared" if self.prompts == "shared" else "") + changed


def _k(*values: int) -> tuple[Context, ...]:
    return tuple(v * K for v in values)


SUITES: Final[dict[str, Suite]] = {
    s.name: s
    for s in (
        Suite(
            "demo", 1, (256, K), (256, K), (1, 2, 4), 3.0, 64, min_time_s=3.0,
            about="Shows the whole path in under a minute on the embedded engine.",
        ),
        Suite(
            "quick", 1, (512, 2 * K), (512, 2 * K), (1, 2, 4), 5.0, 128, min_time_s=5.0,
            about="A first impression in about a minute on a fast server.",
        ),
        Suite(
            "standard", 1, _k(1, 8, 32), _k(1, 8, 32), (1, 2, 4, 8, 16), 20.0, 512, precision=0.01,
            about="The default: what most people ask of a server.",
        ),
        Suite(
            "full", 1, (*_k(8, 16, 32, 64, 128), "max", "full"), (*_k(8, 16, 32, 64, 128), "max"),
            (1, 2, 4, 8, 16, 32, 64, 128), 30.0, 4096, precision=0.01,
            about="The whole room of a large server: every context up to the model's length, up to 128 at once.",
        ),
    )
}  # fmt: skip
DEFAULT: Final = "standard"


def parse_context(text: str | int) -> Context:
    """`8k`, `8192`, `8K`, `max`, `full` → a Context. k = 1024. Raises SuiteError."""
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 1:
            raise SuiteError(f"a context of {text} tokens cannot be sent; the smallest is 1")
        return text
    word = str(text).strip().lower()
    if word == "max":
        return "max"
    if word == "full":
        return "full"
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|m)?", word)
    if not match or float(match[1]) <= 0:
        raise SuiteError(f"'{text}' is no context length; write tokens (8192), thousands of 1024 (8k), max or full")
    tokens = float(match[1]) * {"k": K, "m": K * K, None: 1}[match[2]]
    if tokens < 1 or tokens > 1 << 30:
        raise SuiteError(f"a context of {text} tokens cannot be sent; give 1 to 1024m")
    return round(tokens)


def parse_contexts(text: str) -> tuple[Context, ...]:
    """A comma-separated list of contexts, repeats dropped, order kept. Raises SuiteError."""
    return tuple(dict.fromkeys(parse_context(part) for part in _parts(text, "contexts")))


def parse_concurrency(text: str) -> tuple[int, ...]:
    """`1,2,4` or `1-16` (doubling) → numbers of simultaneous requests, ascending. Raises SuiteError."""
    found: set[int] = set()
    for part in _parts(text, "concurrency"):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        low = int(span[1]) if span else 0
        high = int(span[2]) if span and span[2] else low
        if not span or not 1 <= low <= high <= 100_000:
            raise SuiteError(f"'{part}' is no number of simultaneous requests; write 1,2,4 or 1-16 (doubling)")
        while low < high:
            found.add(low)
            low *= 2
        found.add(high)
    return tuple(sorted(found))


def _parts(text: str, what: str) -> list[str]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts:
        raise SuiteError(f"the list of {what} is empty")
    return parts


def label(tokens: int | None, context: Context) -> str:
    """`8K` for whole multiples of 1024, else as it was asked for: the number, or the word (`full`)."""
    return f"{tokens // K}K" if tokens is not None and tokens >= K and tokens % K == 0 else str(context)


def load(name_or_path: str) -> Suite:
    """A named suite, or one from a TOML file. Raises SuiteError with the entry that is wrong."""
    return read(name_or_path)[0]


def read(name_or_path: str) -> tuple[Suite, dict[str, Any]]:
    """A suite, and the options of `flatout run` that its file holds, in the form in which they are typed.

    Raises SuiteError with the file and the entry that is wrong.
    """
    if name_or_path in SUITES:
        return SUITES[name_or_path], {}
    path = Path(name_or_path)
    if not name_or_path.endswith(".toml") and not path.is_file():
        raise SuiteError(f"no suite '{name_or_path}'; there are {', '.join(SUITES)}, or give a .toml file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SuiteError(f"cannot read the suite {name_or_path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SuiteError(f"{name_or_path} is not TOML: {error}") from error
    try:
        options = {name: RUN_OPTIONS[name](content.pop(name), name) for name in list(content) if name in RUN_OPTIONS}
        suite = _from_mapping(content, default_name=path.stem)
    except SuiteError as error:
        raise SuiteError(f"{name_or_path}: {error}") from error
    return suite, {name: path.parent / value if name in _FILES else value for name, value in options.items()}


def _from_mapping(content: dict[str, Any], *, default_name: str) -> Suite:
    """A suite from TOML's values. `base` names a suite to start from (default: standard). Raises SuiteError."""
    base = content.pop("base", DEFAULT)
    if base not in SUITES:
        raise SuiteError(f"base = {base!r}: there is no such suite; there are {', '.join(SUITES)}")
    changes: dict[str, Any] = {"name": str(content.pop("name", default_name)), "version": 1, "about": ""}
    if "contexts" in content:
        changes["prefill"] = changes["decode"] = _contexts(content.pop("contexts"), "contexts")
    for name, value in content.items():
        if name not in _READERS:
            raise SuiteError(_no_such_entry(name))
        changes[name] = _READERS[name](value, name)
    return checked(replace(SUITES[base], **changes))


def _no_such_entry(name: str) -> str:
    from difflib import get_close_matches

    entries = ("base", "name", "contexts", *_READERS)
    likely = get_close_matches(name, (*entries, *RUN_OPTIONS), 1)
    told = f"do you mean {likely[0]}?" if likely else f"it has {', '.join(entries)}"
    return f"a suite has no entry '{name}'; {told} (flatout run --help-all has more that may stand in a suite)"


def checked(suite: Suite) -> Suite:
    """The suite if it can be run; raises SuiteError if its entries contradict each other."""
    if not suite.prefill and not suite.decode:
        raise SuiteError("the suite has no contexts: give prefill or decode contexts")
    if suite.decode and not suite.concurrency:
        raise SuiteError("the suite has decode contexts but no concurrency")
    if suite.time_s < 0.5:
        raise SuiteError(f"a window of {suite.time_s:g} s is too short to measure; the shortest is 0.5 s")
    if suite.max_output < 2:
        raise SuiteError(f"max_output = {suite.max_output}: at least 2 tokens, else there is no time between tokens")
    if suite.min_time_s > suite.time_s:
        return replace(suite, min_time_s=suite.time_s)
    return suite


def _contexts(value: Any, name: str) -> tuple[Context, ...]:
    if not isinstance(value, list):
        raise SuiteError(f"{name} = {value!r}: write a list, such as [1024, '8k', 'max']")
    return tuple(dict.fromkeys(parse_context(v) for v in value))


def _concurrency(value: Any, name: str) -> tuple[int, ...]:
    if isinstance(value, list) and value and all(type(v) is int and 1 <= v <= 100_000 for v in value):
        return tuple(sorted(set(value)))
    raise SuiteError(f"{name} = {value!r}: write a list of whole numbers, such as [1, 2, 4]")


def _number(value: Any, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6:
        return float(value)
    raise SuiteError(f"{name} = {value!r}: write a number above 0")


def _whole(value: Any, name: str) -> int:
    if type(value) is int and 1 <= value <= 1 << 30:
        return value
    raise SuiteError(f"{name} = {value!r}: write a whole number above 0")


def _mode(value: Any, name: str) -> str:
    if value in ("own", "shared"):
        return str(value)
    raise SuiteError(f"{name} = {value!r}: write 'own' (each stream its own context) or 'shared' (one for all)")


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    raise SuiteError(f"{name} = {value!r}: write true or false")


def _text(value: Any, name: str) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise SuiteError(f"{name} = {value!r}: write a text between quotes")


def _tokens(value: Any, name: str) -> str:
    if isinstance(parse_context(value) if isinstance(value, str) or type(value) is int else None, int):
        return str(value)
    raise SuiteError(f"{name} = {value!r}: write a number of tokens, such as 32768 or '32k'")


def _temperature(value: Any, name: str) -> float:
    return 0.0 if type(value) in (int, float) and value == 0 else _number(value, name)


def _seed(value: Any, name: str) -> int:
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    raise SuiteError(f"{name} = {value!r}: write a whole number, 0 or above")


def _cores(value: Any, name: str) -> str:
    if isinstance(value, list) and value and all(type(core) is int and core >= 0 for core in value):
        return ",".join(map(str, value))
    raise SuiteError(f"{name} = {value!r}: write a list of cores, such as [1] or [2, 3]")


def _body(value: Any, name: str) -> str:
    try:
        return json.dumps(value) if isinstance(value, dict) else _text(value, name)
    except (TypeError, SuiteError) as error:
        raise SuiteError(f"{name} = {value!r}: write a table that JSON can hold, such as {{top_p = 0.9}}") from error


def _precision(value: Any, name: str) -> float | None:
    if value is False:
        return None
    relative = parse_precision(str(value)) if isinstance(value, str) else _number(value, name)
    if not 0.0001 <= relative <= 0.5:
        raise SuiteError(f"{name} = {value!r}: write a share such as 0.01 or '1%', or false for a fixed window")
    return relative


def parse_precision(text: str) -> float:
    """`1%` or `0.01` → 0.01. Raises SuiteError."""
    word = text.strip()
    try:
        relative = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        relative = -1.0
    if not 0.0001 <= relative <= 0.5:
        raise SuiteError(f"'{text}' is no precision; write a share such as 1% (0.01% to 50%)")
    return relative


_READERS: Final[dict[str, Any]] = {
    "prefill": _contexts,
    "decode": _contexts,
    "concurrency": _concurrency,
    "time_s": _number,
    "min_time_s": _number,
    "max_output": _whole,
    "precision": _precision,
    "prompts": _mode,
    "prefill_samples": _whole,
    "skip_queued": _flag,
    "about": lambda value, name: str(value),
    "version": _whole,
}
RUN_OPTIONS: Final[dict[str, Any]] = {
    **dict.fromkeys(
        ("connect_timeout", "first_token_timeout", "idle_timeout", "total_timeout", "steady_timeout", "drain_timeout",
         "ready_timeout", "per_user"), _number,
    ),
    **dict.fromkeys(("max_concurrency", "max_tokens_total", "max_running", "load_processes", "requests"), _whole),
    **dict.fromkeys(("ignore_eos", "warmup", "drain"), _flag),
    **dict.fromkeys(("model_len", "kv_tokens"), _tokens),
    **dict.fromkeys(("engine", "engine_version", "api", "corpus", "tokenizer"), _text),
    "temperature": _temperature,
    "seed": _seed,
    "load_cores": _cores,
    "extra_body": _body,
}  # fmt: skip
"""Options of `flatout run` that a suite's file may hold, too; what is typed goes before them."""
_FILES: Final = ("corpus", "tokenizer")
"""Those that name a file; a relative path begins at the suite's own folder."""
