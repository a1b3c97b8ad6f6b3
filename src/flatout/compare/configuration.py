"""Which runs are repeats of one configuration, and what differs between two."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from flatout.compare.result import Difference
from flatout.record import Fact, Record

_OWN: Final = ("port", "host", "parent", "api-key", "served-model-name", "log-file")
"""Options of a launch command that do not touch the speed, and may differ from start to start."""
_NOT_THE_MACHINE: Final = frozenset({"python", "ram_limit_gb"})
_MOST: Final = 400  # characters of a value that is shown


def pool_key(record: Record) -> str:
    """Equal for runs that are repeats of each other: fingerprint of the plan, engine, version, model, hardware,
    prompts and launch command. The server's room is not in it: engines find a little more or less at each start."""
    told = {
        "plan": record.plan.fingerprint,
        "facts": [(f"{what}/{name}", text) for what, name, text, _ in _facts(record) if what in _POOLED],
    }
    return json.dumps(told, sort_keys=True)


_POOLED: Final = frozenset({"hardware", "engine", "version", "model", "prompts", "launch command", "requests"})


def differences(a: Record, b: Record) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """(what differs and is known on both sides, what cannot be shown to be equal), in the order of a record."""
    found: list[Difference] = []
    unknown: dict[str, None] = {}
    ours = {(what, name): (text, known) for what, name, text, known in _facts(a)}
    theirs = {(what, name): (text, known) for what, name, text, known in _facts(b)}
    for what, name in dict.fromkeys((*ours, *theirs)):
        (x, x_known), (y, y_known) = (side.get((what, name), ("not known", False)) for side in (ours, theirs))
        if x_known and y_known:
            if x != y:
                found.append(_difference(what, name, x, y))
        elif x_known != y_known and what in ("hardware", "engine", "version", "model", "launch command"):
            unknown[f"{what}: {name} is known on one side only ({(x if x_known else y)[:80]})"] = None
    if a.hardware.describes == "client only" or b.hardware.describes == "client only":
        unknown["hardware: the server's machine is not known; give --hardware when measuring"] = None
    if a.plan.fingerprint != b.plan.fingerprint and not any(d.what in ("suite", "requests") for d in found):
        found.append(Difference("suite", "options", a.plan.fingerprint[:16], b.plan.fingerprint[:16]))
    return tuple(found), tuple(unknown)


def _difference(what: str, name: str, a: str, b: str) -> Difference:
    if what == "launch command":
        a, b = (" ".join(part) or "—" for part in _unlike(a.split("\n"), b.split("\n")))
    return Difference(what, name, a[:_MOST], b[:_MOST])


def _unlike(a: list[str], b: list[str]) -> tuple[list[str], list[str]]:
    return [part for part in a if part not in b], [part for part in b if part not in a]


def _facts(record: Record) -> Iterator[tuple[str, str, str, bool]]:
    """(group, name, text, known)."""
    if record.hardware.describes != "client only":
        for name, fact in record.hardware.facts.items():
            if name not in _NOT_THE_MACHINE:
                yield ("hardware", name.replace("_", " "), *_text(fact))
    engine, model = record.engine, record.model
    yield ("engine", "engine", *_text(engine.name))
    for name in ("version", "commit", "build", "backend"):
        yield ("version", name, *_text(getattr(engine, name)))
    for name in ("id", "revision", "quantization", "dtype"):
        yield ("model", name, *_text(getattr(model, name)))
    for name in ("speculative_method", "draft_model", "draft_length"):
        yield ("model", name.replace("_", " "), *_text(getattr(engine, name)))
    command = engine.launch_command.value
    yield ("launch command", "options", *(("\n".join(launch_options(str(command))), True) if command else ("", False)))
    prompts, plan = record.prompts, record.plan
    for name, value in (("mode", prompts.mode), ("source", prompts.source), ("seed", prompts.seed)):
        yield "prompts", name, str(value), True
    yield from _suite(record)
    for name, told in (("api", record.protocol.api), ("sampling", record.protocol.sampling)):
        yield "requests", name, _json(told), True
    for name, told in plan.options.items():
        yield "requests", str(name).replace("_", " "), _json(told), True
    for name in ("model_length", "kv_tokens", "max_running"):
        yield ("room", name.replace("_", " "), *_text(getattr(record.room, name)))
    yield "client", "flatout", record.client.flatout, True
    yield "client", "stamps", record.client.stamp_clock, True


def _suite(record: Record) -> Iterator[tuple[str, str, str, bool]]:
    plan = record.plan
    told: Mapping[str, Any] = {
        "name": plan.suite,
        "longest window (s)": plan.time_s,
        "shortest window (s)": plan.min_time_s,
        "precision": plan.precision,
        "output tokens": plan.max_output,
        "prefill samples": plan.prefill_samples,
        "contexts": [*plan.prefill, "·", *plan.decode],
        "at once": plan.concurrency,
    }
    for name, value in told.items():
        yield "suite", name, value if isinstance(value, str) else _json(value), True


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def _text(fact: Fact) -> tuple[str, bool]:
    return ("", False) if fact.value in (None, "") else (str(fact.value), True)


def launch_options(command: str) -> list[str]:
    """The command's words with each option's value beside it, without those that differ from start to start; the
    program without its directory, which says where it lies and not what it is."""
    try:
        words = shlex.split(command[:8000])
    except ValueError:
        words = command[:8000].split()
    made: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            made.append(word if made else PurePosixPath(word).name)
            continue
        if "=" not in word and words and not words[0].startswith("-"):
            word = f"{word} {words.pop(0)}"
        if word.lstrip("-").replace("=", " ").split(" ")[0] not in _OWN:
            made.append(word)
    return made
