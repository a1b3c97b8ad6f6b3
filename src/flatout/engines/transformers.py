"""`transformers serve`: the protocol alone. No metrics, no tokenizer call, no limits; unknown fields get a 422."""

from __future__ import annotations

from typing import ClassVar

from flatout.engines.base import USAGE, Found, Wants, dig, fact, has, known, unknown
from flatout.engines.generic import Adapter, Ask
from flatout.record import Engine, ServedModel, ServerRoom

_UNSAID = "transformers serve does not tell"


class Transformers(Adapter):
    """All that is known comes from the protocol and, where given, from the command line."""

    name = "transformers"
    repository = "huggingface/transformers"
    programs: ClassVar = {"transformers": 8000}
    wants = Wants(count_fields=(USAGE,))

    @staticmethod
    def recognise_by_list(found: Found, ask: Ask) -> str | None:
        if found.owner != "local" or "x-request-id" not in found.headers:
            return None
        if dig(ask("/openapi.json"), "paths", "/load_model") is None:
            return None
        return "Recognised as transformers serve by its list of models and its endpoints."

    def engine(self) -> Engine:
        engine = super().engine()
        engine.version = unknown("transformers serve does not tell its version")
        engine.backend = self.server_or_flag(_UNSAID, None, self.option("--device"))
        engine.speculative_method = known("none", "derived", "transformers serve has no speculative decoding")
        return engine

    def served_model(self) -> ServedModel:
        model = super().served_model()
        model.dtype = self.server_or_flag(_UNSAID, None, self.option("--dtype", "--torch-dtype"))
        model.quantization = self.server_or_flag(_UNSAID, None, self.option("--quantization"))
        return model

    def room(self) -> ServerRoom:
        # Without continuous batching it answers one request after the other.
        batching = has(self.found.argv, "--continuous-batching")
        one_by_one = 1 if self.found.argv and not batching else None
        return ServerRoom(
            model_length=unknown("transformers serve keeps no limit on a request's length"),
            kv_tokens=unknown("transformers serve does not tell how many tokens its KV cache holds"),
            max_running=fact("transformers serve does not tell how it batches", one_by_one, "derived"),
        )
