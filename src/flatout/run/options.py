"""Everything that a user decides about one run, as values; the command line fills it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flatout.load.job import Timeouts
from flatout.suite import SUITES, Suite


@dataclass(frozen=True, slots=True)
class Options:
    """Defaults are what a user gets who gives a URL and nothing else. Times in seconds.

    `drain`: make the server idle before each cell (off only to show what that is good for). `steady_s`: longest wait
    for the load to become steady. `drain_s`: longest wait for the server to become idle.
    """

    url: str | None = None
    launch: str | None = None
    suite: Suite = SUITES["standard"]
    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    engine_version_source: Literal["typed", "host"] = "typed"
    api: Literal["auto", "chat", "completions"] = "auto"
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    insecure: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    steady_s: float = 300.0
    drain_s: float = 120.0
    ready_s: float = 1800.0
    temperature: float | None = None
    extra_body: str = "{}"
    ignore_eos: bool = True
    corpus: Path | None = None
    tokenizer: Path | None = None
    seed: int = 0
    requests: int | None = None
    max_concurrency: int | None = None
    max_tokens_total: int | None = None
    model_length: int | None = None
    kv_tokens: int | None = None
    max_running: int | None = None
    hardware: str | None = None
    per_user_tok_s: float = 20.0
    warmup: bool = True
    drain: bool = True
    results: Path = Path("results")
    resume: Path | None = None
    load_processes: int | None = None
    load_cores: tuple[int, ...] | None = None
    command: tuple[str, ...] = ()
    note: str | None = None

    def recorded(self) -> dict[str, Any]:
        """The options that shape a measurement, for the record: no key, no header values, no paths."""
        return {
            "api": self.api,
            "temperature": self.temperature,
            "extra_body": json.loads(self.extra_body),
            "ignore_eos": self.ignore_eos,
            "requests": self.requests,
            "seed": self.seed,
            "tokenizer": self.tokenizer.name if self.tokenizer else None,
            "max_concurrency": self.max_concurrency,
            "max_tokens_total": self.max_tokens_total,
            "warmup": self.warmup,
            "drain": self.drain,
            "headers": sorted(name for name, _ in self.headers),
            "corpus": self.corpus.name if self.corpus else None,
            "typed_limits": {
                k: v
                for k, v in (
                    ("model_length", self.model_length),
                    ("kv_tokens", self.kv_tokens),
                    ("max_running", self.max_running),
                )
                if v is not None
            },
        }

    def fingerprint(self) -> str:
        """A short hash of what must be equal for a run to be gone on with (`--resume`)."""
        suite = {name: getattr(self.suite, name) for name in Suite.__slots__ if name != "about"}
        shape = json.dumps({"suite": suite, **self.recorded()}, sort_keys=True, default=str)
        return hashlib.sha256(shape.encode()).hexdigest()[:16]
