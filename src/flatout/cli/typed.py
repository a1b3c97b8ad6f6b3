"""Options out of what was typed: every word checked before anything is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.run.options import Options
    from flatout.suite import Suite


class UseError(Exception):
    """What was typed cannot be done; the text says what to type instead."""


def options_of(given: Mapping[str, Any], argv: list[str]) -> Options:
    """Options out of what was typed. Raises UseError and SuiteError."""
    from flatout.run.options import Options

    if given["url"] is None and given["launch"] is None:
        if given["resume"] is not None:
            raise UseError(f"--resume needs the options that the run had: {_as_before(given['resume'])}")
        raise UseError("name the server's URL (flatout run http://localhost:8000), or start one with --launch")
    _consistent(given)
    length, room = _lengths(given)
    return Options(
        **_about_server(given),
        **_about_limits(given),
        suite=_suite(given),
        temperature=given["temperature"],
        extra_body=_extra_body(given["extra_body"]),
        ignore_eos=given["ignore_eos"],
        corpus=given["corpus"],
        tokenizer=given["tokenizer"],
        seed=given["seed"],
        requests=given["requests"],
        model_length=length,
        kv_tokens=room,
        max_running=given["max_running"],
        hardware=given["hardware"],
        per_user_tok_s=given["per_user"],
        warmup=given["warmup"],
        drain=given["drain"],
        results=given["results"],
        resume=given["resume"],
        command=tuple(argv),
        note=given["note"],
    )


def _about_server(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "url": given["url"],
        "launch": given["launch"],
        "model": given["model"],
        "engine": given["engine"],
        "engine_version": given["engine_version"],
        "api": given["api"],
        "key": _key(given["api_key"], given["api_key_file"], given["url"]),
        "headers": _headers(given["header"] or []),
        "ca_file": str(given["ca"]) if given["ca"] else None,
        "insecure": given["insecure"],
    }


def _about_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    from flatout.load.job import Timeouts

    return {
        "timeouts": Timeouts(
            given["connect_timeout"], given["first_token_timeout"], given["idle_timeout"], given["total_timeout"]
        ),
        "steady_s": given["steady_timeout"],
        "drain_s": given["drain_timeout"],
        "ready_s": given["ready_timeout"],
        "max_concurrency": given["max_concurrency"],
        "max_tokens_total": given["max_tokens_total"],
        "load_processes": given["load_processes"],
        "load_cores": cores_of(given["load_cores"], "--load-cores"),
    }


def _lengths(given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Checks what must be one of a few words or a file, and reads the limits typed in tokens."""
    from flatout.suite import parse_context

    if given["api"] not in ("auto", "chat", "completions"):
        raise UseError(f"--api {given['api']}: it is auto, chat or completions")
    for name in ("ca", "corpus", "tokenizer"):
        if given[name] is not None and not given[name].is_file():
            raise UseError(f"--{name} {given[name]}: there is no such file")
    length = parse_context(given["model_len"]) if given["model_len"] else None
    room = parse_context(given["kv_tokens"]) if given["kv_tokens"] else None
    if isinstance(length, str) or isinstance(room, str):
        raise UseError("--model-len and --kv-tokens take a number of tokens, such as 32768 or 32k")
    return length, room


def _as_before(directory: Path) -> str:
    """The command that goes on with a run, out of its record. Raises RecordError."""
    import shlex

    from flatout import record as rec

    words = rec.read(directory).client.command[1:]
    return shlex.join(["flatout", *words, *([] if "--resume" in words else ["--resume", str(directory)])])


def _consistent(given: Mapping[str, Any]) -> None:
    """What was typed fits together, before anything is started. Raises UseError, HardwareError."""
    from flatout.engines.base import TargetError
    from flatout.engines.endpoint import parse_address
    from flatout.run.describe import check_hardware

    if given["url"] is not None:
        try:
            parse_address(given["url"])
        except TargetError as error:
            raise UseError(str(error)) from error
    check_hardware(given["hardware"])
    if given["requests"] is not None and given["concurrency"]:
        raise UseError("--requests sends that many at once; --concurrency does not go with it")
    if given["max_time"] is not None and not given["precision"] and given["suite"] in ("demo", "quick"):
        raise UseError("--max-time needs --precision: without it a window has one length, --time")
    if given["dry_run"] and given["json_output"]:
        raise UseError("--dry-run prints lines for people; it has no --json")


def _suite(given: Mapping[str, Any]) -> Suite:
    from flatout import suite as suites

    chosen = suites.load(given["suite"])
    changes: dict[str, Any] = {}
    if given["contexts"] is not None:
        changes["prefill"] = changes["decode"] = suites.parse_contexts(given["contexts"])
    if given["prefill"]:
        changes["prefill"] = () if given["prefill"] == "none" else suites.parse_contexts(given["prefill"])
    if given["concurrency"]:
        changes["concurrency"] = suites.parse_concurrency(given["concurrency"])
    if given["max_time"] is not None:
        changes["time_s"] = given["max_time"]
    if given["precision"]:
        changes["precision"] = None if given["precision"] == "none" else suites.parse_precision(given["precision"])
    if given["time"] is not None:
        if given["max_time"] is not None or changes.get("precision") is not None:
            raise UseError("--time fixes the window; for an early end give --precision with --max-time instead")
        changes |= {"time_s": given["time"], "min_time_s": given["time"], "precision": None}
    if given["max_output"] is not None:
        changes["max_output"] = given["max_output"]
    if given["prompts"]:
        if given["prompts"] not in ("own", "shared"):
            raise UseError(f"--prompts {given['prompts']}: it is own or shared")
        changes["prompts"] = given["prompts"]
    if given["skip_queued"]:
        changes["skip_queued"] = True
    made = suites.checked(replace(chosen, **changes))
    if any(name not in ("prompts",) for name in changes) and made != chosen:
        made = replace(made, name=f"{made.name}*")
    return made


def _key(typed: str | None, file: Path | None, url: str | None) -> str | None:
    if typed and file:
        raise UseError("give either --api-key or --api-key-file")
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UseError(f"--api-key-file {file}: cannot be read ({error})") from error
        if not key or "\n" in key:
            raise UseError(f"--api-key-file {file}: it must hold one line, the key")
        return key
    from flatout.engines.endpoint import key_from_environment

    return typed or key_from_environment(url, os.environ)[0]


def _headers(typed: list[str]) -> tuple[tuple[str, str], ...]:
    made = []
    for text in typed:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or any(c in text for c in "\r\n"):
            raise UseError("--header takes 'Name: value'")
        if not name.strip().isascii() or not all(c.isalnum() or c in "-_" for c in name.strip()):
            raise UseError(f"--header: '{name.strip()}' is no name of a header")
        made.append((name.strip(), value.strip()))
    return tuple(made)


def _extra_body(text: str) -> str:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UseError(f"--extra-body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UseError("--extra-body takes a JSON object, such as '{\"top_p\": 0.9}'")
    several = [n for n in ("n", "best_of") if content.get(n) not in (None, 1)]
    if several:
        raise UseError(f"--extra-body: {several[0]} > 1 makes one request several answers; use --concurrency for that")
    taken = [n for n in ("stream", "messages", "prompt", "model") if n in content]
    if taken:
        raise UseError(f"--extra-body: '{taken[0]}' is flatout's own to set")
    return json.dumps(content)


def cores_of(text: str | None, option: str) -> tuple[int, ...] | None:
    """Cores such as `1` or `2,3` that this process may use. Raises UseError."""
    if text is None:
        return None
    try:
        cores = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UseError(f"{option} takes numbers, such as 1 or 2,3") from None
    have = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    if not set(cores) <= have:
        raise UseError(f"{option} {text}: this process may use {', '.join(map(str, sorted(have)))}")
    return cores
