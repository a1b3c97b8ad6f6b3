"""Synthetic records: the seed page as a record, and one with every status, flag and oddity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flatout.flags import Flag as FlagName
from flatout.flags import Status
from flatout.record import (
    Acceptance,
    BurstFigures,
    Cell,
    Client,
    DecodeFigures,
    Distribution,
    Engine,
    Fact,
    Flag,
    Hardware,
    Plan,
    PrefillFigures,
    PrefillSample,
    Prompts,
    Protocol,
    Rate,
    Record,
    ServedModel,
    ServerRoom,
    Window,
)

SEED = Path(__file__).parent / "fixtures" / "seed" / "speed-test.json"


def fact(value: str | int | float | bool | None, reason: str | None = None, source: str = "server") -> Fact:
    if value is None:
        return Fact(reason=reason or "the server does not say")
    return Fact(value=value, source=source)  # type: ignore[arg-type]


def rate(value: float | None, spread: float | None = 0.004) -> Rate:
    if value is None:
        return Rate(reason="not measured")
    if spread is None:
        return Rate(value=value, reason="one batch only", n=1)
    return Rate(value=value, low=value * (1 - spread), high=value * (1 + spread), interval="within this run", n=12)


def spread(p50: float | None, *, p99: float | None = None, whose: str | None = None) -> Distribution:
    reasons = {} if p50 is not None else {"p50": "no request gave one"}
    if p99 is None:
        reasons["p99"] = "100 samples are needed, there are 12"
    return Distribution(p50=p50, p90=p50, p99=p99, mean=p50, max=p50, n=12, whose=whose, reasons=reasons)


def prefill(label: str, tokens: int | None, tok_s: float | None, ttft_ms: float | None, **more: Any) -> Cell:
    figures = None
    if tok_s is not None:
        samples = [
            PrefillSample(prompt_tokens=tokens, cached_tokens=0, ttft_ms=ttft_ms, prefill_tok_s=tok_s, used=True)
            for _ in range(3)
        ]
        figures = PrefillFigures(
            prefill_tok_s=rate(tok_s), ttft_ms=spread(ttft_ms), prompt_tokens=tokens, samples=samples
        )
    return Cell(
        id=f"p/{tokens or label}", phase="prefill", context=label, context_tokens=tokens, concurrency=1, max_output=1,
        need_tokens=tokens, prefill=figures, **{"status": Status.VALID, **more},
    )  # fmt: skip


def decode(label: str, tokens: int | None, n: int, tok_s: float | None = None, **more: Any) -> Cell:
    """A decode cell; figures by name in `more`: each_tok_s, ttft_ms, itl_ms, active, completed, output."""
    take = {k: more.pop(k, None) for k in ("each_tok_s", "ttft_ms", "itl_ms", "active", "completed", "output", "whose")}
    figures = None
    if tok_s is not None:
        each = take["each_tok_s"] if take["each_tok_s"] is not None else tok_s / n
        figures = DecodeFigures(
            total_tok_s=rate(tok_s),
            per_request_tok_s=spread(each),
            ttft_ms=spread(take["ttft_ms"], whose=take["whose"]),
            tpot_ms=spread(1000 / each),
            itl_ms=spread(take["itl_ms"], p99=None if take["itl_ms"] is None else take["itl_ms"] * 1.4),
            active_own_mean=float(n),
            active_server_mean=take["active"],
            completed=take["completed"],
            output_tokens=take["output"],
            acceptance=more.pop("acceptance", None),
        )
        more.setdefault("window", window(30.0))
    return Cell(
        id=f"d/{tokens or label}/{n}", phase="decode", context=label, context_tokens=tokens, concurrency=n,
        max_output=4096, need_tokens=n * ((tokens or 0) + 4096), decode=figures, **{"status": Status.VALID, **more},
    )  # fmt: skip


def burst(label: str, tokens: int, n: int, tok_s: float | None, **more: Any) -> Cell:
    figures = None
    if tok_s is not None:
        figures = BurstFigures(
            end_to_end_tok_s=rate(tok_s), per_request_tok_s=spread(tok_s / n), duration_s=12.5, ttft_ms=spread(240.0),
            tpot_ms=spread(8.0), itl_ms=spread(8.1, p99=15.0), completed=n, output_tokens=tok_s * 12.5,
        )  # fmt: skip
    return Cell(
        id=f"b/{tokens}/{n}", phase="burst", context=label, context_tokens=tokens, concurrency=n, max_output=256,
        need_tokens=n * (tokens + 256), burst=figures, **{"status": Status.VALID, **more},
    )  # fmt: skip


def window(length_s: float) -> Window:
    return Window(
        opened="2026-11-30T02:41:00.000+00:00", open_ns=10**9, close_ns=10**9 + round(length_s * 1e9),
        length_s=length_s, ended_by="fixed time", looks_s=[length_s],
    )  # fmt: skip


def record(cells: list[Cell], **more: Any) -> Record:
    """A record around the cells; identity like the seed page's unless given."""
    contexts = list(dict.fromkeys(c.context for c in cells))
    parts: dict[str, Any] = {
        "id": "20261130T024100Z-Qwen3.5-4B-sglang",
        "state": "finished",
        "started": "2026-11-30T02:41:00.000+00:00",
        "finished": "2026-11-30T02:55:10.000+00:00",
        "engine": engine(),
        "model": ServedModel(
            id=fact("Qwen/Qwen3.5-4B"), served_as=fact("qwen"), revision=fact("main"), quantization=fact("BF16"),
            dtype=fact("bfloat16"),
        ),
        "room": ServerRoom(model_length=fact(262144), kv_tokens=fact(1_187_904), max_running=fact(32)),
        "protocol": Protocol(url="http://localhost:8000/v1", api="chat", dropped=[("return_token_ids", "extra field")]),
        "hardware": Hardware(
            describes="server",
            facts={
                "type": fact("discrete GPU", source="host"),
                "gpu": fact("H200 NVL", source="host"),
                "gpu_memory_gb": fact(141, source="host"),
                "driver": fact(None, "nvidia-smi does not answer"),
                "power_limit_w": fact(600, source="host"),
                "os": fact("Linux", source="host"),
            },
        ),
        "client": Client(
            flatout="0.1.0", python="3.11.7", command=["flatout", "run", "http://localhost:8000"], machine={},
            stamp_clock="kernel", stamp_clock_reason=None, load_processes=1,
        ),
        "plan": Plan(
            suite="full/1", prefill=contexts, decode=contexts, concurrency=sorted({c.concurrency for c in cells}),
            time_s=30.0, min_time_s=5.0, precision=0.01, max_output=4096, prefill_samples=3,
            order=[c.id for c in cells], fingerprint="0123456789abcdef",
        ),
        "prompts": Prompts(mode="own", source="flatout's text", seed=0, run_nonce="5f0c", exact=True),
        "cells": cells,
    }  # fmt: skip
    return Record(**{**parts, **more})


def engine(**more: Any) -> Engine:
    parts: dict[str, Any] = {
        "name": fact("sglang"), "version": fact("0.5.6.post3.dev9269+g834400705"), "commit": fact("834400705f2d"),
        "build": fact("cuda-13.2"), "backend": fact("cuda"), "repository": fact("github.com/sgl-project/sglang"),
        "adapter": "sglang", "adapter_verified": True,
        "launch_command": fact("sglang serve --model-path Qwen/Qwen3.5-4B --tp 1 --api-key <redacted>"),
        "speculative_method": fact("DFLASH"), "draft_model": fact("z-lab/Qwen3.5-4B-DFlash"), "draft_length": fact(8),
    }  # fmt: skip
    return Engine(**{**parts, **more})


def seed_page() -> Record:
    """The seed's page as a record, with our statuses: cells with over 5 % more requests running than asked are
    doubtful (contaminated)."""
    cells = []
    for row in json.loads(SEED.read_text(encoding="utf-8"))["cells"]:
        label, tokens, n = row["context_label"], row["context_tokens"], row["concurrency"]
        if row["phase"] == "prefill":
            cells.append(prefill(label, tokens, row["total_tok_s"], row["ttft_ms"]))
            continue
        more: dict[str, Any] = {"status": row["status"]}
        active = row["average_active"]
        if row["status"] == "over_capacity":
            need = n * (tokens + 4096)
            more["reason"] = f"{n} x ({tokens:,} + 4,096) tokens need {need:,} of KV cache; the server holds 1,187,904"
        elif row["status"] == "not_run":
            more["reason"] = "stopped early by the user"
        elif active > n * 1.05:
            more["status"] = Status.DOUBTFUL
            more["flags"] = [Flag(name=FlagName.CONTAMINATED, detail=f"{active} running for {n} asked")]
        cells.append(
            decode(
                label, tokens, n, row["total_tok_s"], each_tok_s=row["per_request_tok_s"], ttft_ms=row["ttft_ms"],
                itl_ms=row["itl_ms"], active=active, completed=row["completed"] and int(row["completed"]),
                output=row["output_tokens"], **more,
            )
        )  # fmt: skip
    return record(cells)


def every_kind() -> Record:
    """Every status and every flag once, an unknown one of each, bursts, missing figures, an interrupted run."""
    k = 1024
    flags = [Flag(name=name, detail=f"seen here: {name}") for name in FlagName]
    cells = [
        prefill("1K", k, 12_345.6, 83.0),
        prefill("8K", 8 * k, 9_100.0, 900.0, flags=[flags[4]]),
        prefill("max", None, None, None, status=Status.NOT_RUN, reason="'max' needs the model's length"),
        decode("1K", k, 1, 99.96, ttft_ms=9.96, itl_ms=10.004, active=1.0, completed=12, output=2999.2),
        decode("1K", k, 2, 180.0, ttft_ms=None, itl_ms=11.0, active=2.0, completed=0, output=5400.0, flags=flags[:3]),
        decode("1K", k, 4, 300.0, each_tok_s=75.0, ttft_ms=21.0, itl_ms=13.1, active=4.4,
               whose="the launch's own requests", status=Status.DOUBTFUL, flags=flags[3:]),
        decode("1K", k, 8, 310.0, each_tok_s=77.0, ttft_ms=3_021.0, itl_ms=13.0, active=4.0,
               status=Status.REQUESTS_QUEUED, acceptance=Acceptance(length=2.31, how="counters")),
        decode("8K", 8 * k, 1, status=Status.FAILED, reason="the server closed the stream",
               error='HTTP 500: {"error": "CUDA out of memory"}'),
        decode("8K", 8 * k, 2, status=Status.NO_STEADY_STATE, reason="2 of 2 streams had no token after 300 s"),
        decode("8K", 8 * k, 4, status=Status.OVER_CAPACITY, reason="needs 49,152 tokens; the server holds 40,000"),
        decode("8K", 8 * k, 8, status=Status.OVER_LENGTH, reason="longer than the server's limit of 8,000"),
        decode("max", None, 1, status=Status.NOT_RUN, reason="'max' needs the model's length"),
        decode("max", None, 2, status="brand_new", reason="from a later version", flags=[
            Flag(name="later_flag", detail="unknown here")]),
        burst("1K", k, 16, 2_345.0),
        burst("1K", k, 64, None, status=Status.FAILED, reason="the server died", error="connection reset by peer"),
    ]  # fmt: skip
    return record(
        cells,
        state="interrupted",
        state_reason="stopped by the user",
        warnings=["the server refused ignore_eos: answers may end early"],
    )
