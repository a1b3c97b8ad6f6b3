"""Rows for localmaxxing.com: one flat object an operating point, as its `POST /api/benchmarks` takes it.

Field names and meanings as its API documentation and its CLI's reference tell them (localmaxxing.com/api-docs and the
repository LottoLottoLotto/localmaxxing-cli): `promptTokens` is a fresh prompt, `prefillTokens` what lies in the cache
before, `tokSOut` the rate from the first token to the last, `tokSPrefill` prompt tokens over TTFT.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from flatout.flags import Status
from flatout.limits.cells import settings_of
from flatout.record import Cell, DecodeFigures, Fact, PrefillFigures, Record
from flatout.show import about, numbers
from flatout.show.safe import clean

REQUIRED: Final = ("hfId", "hardware", "engineName", "quantization", "tokSOut")
ONE_OF: Final = ("tokSPrefill", "tokSTotal", "ttftMs", "peakVramGb")
PUBLISHED: Final = frozenset({Status.VALID, Status.REQUESTS_QUEUED})
_CLASSES: Final[Mapping[str, str]] = {
    "discrete_gpu": "DISCRETE_GPU", "unified_memory": "UNIFIED", "cpu_only": "CPU_ONLY",
}  # fmt: skip
_VENDORS: Final = ("Apple", "AMD", "NVIDIA", "Intel", "Qualcomm")
_TEXT_LIMIT: Final = 2000


def write(record: Record) -> str:
    return json.dumps(localmaxxing(record), indent=1)


def localmaxxing(record: Record, *, aggregates: bool = False) -> list[dict[str, Any]]:
    """One row for each decode cell with one stream; with `aggregates` also those with more, each labelled as the sum
    over its streams. Doubtful cells are never published. What is not known is left out, for the API has no null.

    A cell's context counts as its fresh prompt where the same context has a cold prefill cell (whose TTFT and rate
    stand in the row), else as tokens in the cache, with the warm TTFT. `localmaxxing_missing` says what a row lacks.
    """
    cold = {c.context_tokens: c for c in record.cells if c.phase == "prefill" and _published(c) and c.prefill}
    made = []
    for cell in record.cells:
        if cell.decode is None or not _published(cell) or (cell.concurrency > 1 and not aggregates):
            continue
        prefill = cold.get(cell.context_tokens)
        row = _common(record) | _speed(cell, cell.decode, prefill.prefill if prefill else None)
        row["engineFlags"] = _engine_flags(record, cell, cell.decode)
        row["notes"] = _notes(record, cell, cell.decode)
        made.append({key: value for key, value in row.items() if value not in (None, {}, "")})
    return made


def localmaxxing_missing(row: Mapping[str, Any]) -> list[str]:
    """Required fields that a row lacks; the site refuses it as long as there are any."""
    missing = [name for name in REQUIRED if name not in row]
    if not any(name in row for name in ONE_OF):
        missing.append(" or ".join(ONE_OF))
    return missing


def _published(cell: Cell) -> bool:
    return cell.status in PUBLISHED


def _common(record: Record) -> dict[str, Any]:
    engine, model = record.engine, record.model
    return {
        "hfId": _text(model.id, 256),
        "modelRevision": _text(model.revision, 128),
        "quantization": _text(model.quantization, 64) or _text(model.dtype, 64),
        "engineName": _engine(record),
        "engineVersion": _text(engine.version, 128),
        "engineRepository": _text(engine.repository, 256),
        "engineBuild": _text(engine.build, 128),
        "engineCommit": _text(engine.commit, 64),
        "backend": _text(engine.backend, 64),
        "hardware": _hardware(record),
    }


def _text(fact: Fact | None, limit: int = _TEXT_LIMIT) -> str | None:
    return clean(fact.value, limit) if fact is not None and fact.value not in (None, "") else None


def _engine(record: Record) -> str | None:
    name = _text(record.engine.name, 64)
    return {"llamacpp": "llama.cpp", "llama-server": "llama.cpp"}.get(name.lower(), name) if name else None


def _number(facts: Mapping[str, Fact], *names: str) -> float | int | None:
    for name in names:
        value = facts[name].value if name in facts else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def _hardware(record: Record) -> dict[str, Any]:
    """The server's machine; nothing where only the client's is known."""
    if record.hardware.describes == "client only":
        return {}
    facts = record.hardware.facts
    kind = str(facts["type"].value).lower().replace(" ", "_") if "type" in facts else ""
    chip = _text(facts.get("gpu"), 200) or _text(facts.get("cpu"), 200)
    made: dict[str, Any] = {"hwClass": _CLASSES.get(kind), "os": _text(facts.get("os"), 100)}
    made |= {"cpu": _text(facts.get("cpu"), 200), "ramGb": _number(facts, "ram_gb")}
    if made["hwClass"] == "UNIFIED":
        made |= {"chipFamily": chip, "unifiedMemoryGb": _number(facts, "memory_gb", "ram_gb")}
        made["chipVendor"] = next((vendor for vendor in _VENDORS if chip and vendor.lower() in chip.lower()), None)
    elif made["hwClass"] == "DISCRETE_GPU":
        made |= {"gpuName": _text(facts.get("gpu"), 200), "gpuCount": _number(facts, "gpu_count")}
        made["vramGb"] = _number(facts, "gpu_memory_gb", "memory_gb")
    return {key: value for key, value in made.items() if value is not None}


def _speed(cell: Cell, decode: DecodeFigures, prefill: PrefillFigures | None) -> dict[str, Any]:
    """`tokSOut` of one stream is its own rate (1/TPOT, median); of several the total over the window."""
    own = decode.per_request_tok_s.p50 if cell.concurrency == 1 else None
    row: dict[str, Any] = {
        "tokSOut": own if own is not None else decode.total_tok_s.value,
        "outputTokens": cell.max_output,
    }
    if prefill is None:
        return row | {"prefillTokens": cell.context_tokens, "ttftMs": decode.ttft_ms.p50}
    return row | {
        "promptTokens": prefill.prompt_tokens or cell.context_tokens, "prefillTokens": 0,
        "ttftMs": prefill.ttft_ms.p50, "tokSPrefill": prefill.prefill_tok_s.value,
    }  # fmt: skip


def _engine_flags(record: Record, cell: Cell, decode: DecodeFigures) -> dict[str, Any]:
    engine, settings = record.engine, settings_of(record)
    flags: dict[str, Any] = {
        "commandSnippet": _text(engine.launch_command, 4000),
        "concurrency": cell.concurrency,
        "tensorParallel": settings.tensor_parallel if engine.launch_command.value else None,
        "maxRunningSeqs": record.room.max_running.value,
    }
    if settings.speculative:
        flags |= {
            "specDecoding": True, "specMethod": _text(engine.speculative_method, 64),
            "specModel": _text(engine.draft_model, 256), "specNumTokens": settings.draft_tokens,
            "specMeanAcceptedLength": decode.acceptance.length if decode.acceptance else None,
        }  # fmt: skip
    temperature = record.protocol.sampling.get("temperature")
    if isinstance(temperature, int | float) and not isinstance(temperature, bool):
        flags["temperature"] = temperature
    return {key: value for key, value in flags.items() if value is not None}


def _notes(record: Record, cell: Cell, decode: DecodeFigures) -> str:
    rate = decode.total_tok_s
    spread = numbers.interval(rate.value, rate.low, rate.high)
    parts = [f"{about.context(cell)} context"]
    if cell.concurrency > 1:
        running = decode.active_server_mean if decode.active_server_mean is not None else decode.active_own_mean
        ran = f", {numbers.mean(running)} running on average" if running is not None else ""
        parts.insert(0, f"AGGREGATE: tokSOut is the sum over {cell.concurrency} simultaneous requests{ran}")
    if spread != numbers.NONE:
        parts.append(f"total {numbers.rate(rate.value)} tok/s {spread} (95 %)")
    if cell.flags:
        parts.append("flags: " + ", ".join(dict.fromkeys(flag.name for flag in cell.flags)))
    parts.append(f"suite {record.plan.suite}, measured by flatout {record.client.flatout}")
    return clean("; ".join(parts), _TEXT_LIMIT)
