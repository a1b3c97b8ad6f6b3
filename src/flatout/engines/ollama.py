"""Ollama, from its documentation (/api/version, /api/ps, /api/show): not verified against a running one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from flatout.engines.base import Fact, Identity, Room, TargetError, Wants
from flatout.engines.generic import USAGE, Found, Generic, dig, first, text, whole
from flatout.engines.http import ControlClient


class Ollama(Generic):
    """/api/ps lists a model only while it is loaded, so it is asked anew for `room`.

    Ollama cuts prompts beyond its context length in silence; only the prompt count in the usage shows it.
    """

    name = "ollama"
    verified = False
    repository: ClassVar[str | None] = "ollama/ollama"
    wants = Wants(count_fields=(USAGE,))

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        try:
            self._show: Any = client.ask("POST", "/api/show", body={"model": self.model}, timeout_s=10.0)
        except TargetError:
            self._show = None

    def identity(self) -> Identity:
        details = dig(self._show, "details")
        running = self._running()
        return replace(
            self._identity(),
            version=first(
                "Ollama's /api/version is not reachable", (text(dig(self.answer("/api/version"), "version")), "server")
            ),
            revision=first("Ollama tells the digest of loaded models only", (text(dig(running, "digest")), "server")),
            quantization=first(
                "Ollama's /api/show does not tell",
                (text(dig(details, "quantization_level")), "server"),
                (text(dig(running, "details", "quantization_level")), "server"),
            ),
            dtype=Fact.missing("a GGUF file has a quantization instead"),
        )

    def room(self) -> Room:
        length = whole(dig(self._running(), "context_length"))
        return Room(
            model_length=first("Ollama tells the context length of loaded models only, by /api/ps", (length, "server")),
            kv_tokens=Fact.missing("Ollama does not tell how many tokens its KV cache holds"),
            max_running=Fact.missing("Ollama does not tell OLLAMA_NUM_PARALLEL"),
        )

    def _running(self) -> Any | None:
        try:
            models = dig(self.client.ask("GET", "/api/ps"), "models")
        except TargetError:
            return None
        names = {self.model, f"{self.model}:latest"}
        entries = models if isinstance(models, list) else []
        return next((m for m in entries if names & {dig(m, "name"), dig(m, "model")}), None)
