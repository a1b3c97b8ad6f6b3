"""Ollama, from its documentation (/api/version, /api/ps, /api/show): not verified against a running one."""

from __future__ import annotations

from typing import Any, ClassVar

from flatout.engines.base import USAGE, Found, TargetError, Wants, dig, fact, text, unknown, whole
from flatout.engines.generic import ASK_TIMEOUT_S, Adapter, Ask
from flatout.engines.http import ControlClient
from flatout.record import Engine, ServedModel, ServerRoom


class Ollama(Adapter):
    """/api/ps lists a model only while it is loaded, so it is asked anew for `room`.

    Ollama cuts prompts beyond its context length in silence; only the prompt count in the usage shows it.
    """

    name = "ollama"
    repository = "ollama/ollama"
    programs: ClassVar = {"ollama": 11434}
    address_variable = "OLLAMA_HOST"
    wants = Wants(count_fields=(USAGE,))
    verified = False

    def __init__(self, client: ControlClient, found: Found) -> None:
        super().__init__(client, found)
        try:
            self._show: Any = client.ask("POST", "/api/show", body={"model": self.model}, timeout_s=ASK_TIMEOUT_S)
        except TargetError:
            self._show = None

    @staticmethod
    def recognise_by_list(found: Found, ask: Ask) -> str | None:
        return "Recognised as Ollama by the owner named in its list of models." if found.owner == "library" else None

    @staticmethod
    def recognise_by_endpoints(found: Found, ask: Ask) -> str | None:
        return "Recognised as Ollama by /api/version." if text(dig(ask("/api/version"), "version")) else None

    def engine(self) -> Engine:
        engine = super().engine()
        version = text(dig(self.answer("/api/version"), "version"))
        engine.version = fact("Ollama's /api/version is not reachable", version)
        return engine

    def served_model(self) -> ServedModel:
        model, running = super().served_model(), self._running()
        model.revision = fact("Ollama tells the digest of loaded models only", text(dig(running, "digest")))
        levels = [text(dig(answer, "details", "quantization_level")) for answer in (self._show, running)]
        model.quantization = fact("Ollama's /api/show does not tell", levels[0] or levels[1])
        model.dtype = unknown("a GGUF file has a quantization instead")
        return model

    def room(self) -> ServerRoom:
        length = whole(dig(self._running(), "context_length"))
        return ServerRoom(
            model_length=fact("Ollama tells the context length of loaded models only, by /api/ps", length),
            kv_tokens=unknown("Ollama does not tell how many tokens its KV cache holds"),
            max_running=unknown("Ollama does not tell OLLAMA_NUM_PARALLEL"),
        )

    def _running(self) -> Any | None:
        try:
            models = dig(self.client.ask("GET", "/api/ps"), "models")
        except TargetError:
            return None
        names = {self.model, f"{self.model}:latest"}
        entries = models if isinstance(models, list) else []
        return next((m for m in entries if names & {dig(m, "name"), dig(m, "model")}), None)
