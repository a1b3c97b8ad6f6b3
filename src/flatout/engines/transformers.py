"""`transformers serve`: the protocol alone. No metrics, no tokenizer call, no limits; unknown fields get a 422."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from flatout.engines import argv as flags
from flatout.engines.base import Fact, Identity, Room, Wants
from flatout.engines.generic import USAGE, Generic, first


class Transformers(Generic):
    """All that is known comes from the protocol and, where given, from the command line."""

    name = "transformers"
    repository: ClassVar[str | None] = "huggingface/transformers"
    wants = Wants(count_fields=(USAGE,))

    def identity(self) -> Identity:
        source = self.found.argv_source
        unsaid = "transformers serve does not tell"
        return replace(
            self._identity(),
            version=Fact.missing("transformers serve does not tell its version"),
            backend=first(unsaid, (self.option("--device"), source)),
            dtype=first(unsaid, (self.option("--dtype", "--torch-dtype"), source)),
            quantization=first(unsaid, (self.option("--quantization"), source)),
            speculative_method=Fact("none", "derived", "transformers serve has no speculative decoding"),
        )

    def room(self) -> Room:
        batching = flags.has(self.found.argv, "--continuous-batching")
        # Without continuous batching it answers one request after the other.
        one_by_one = 1 if self.found.argv and not batching else None
        return Room(
            model_length=Fact.missing("transformers serve keeps no limit on a request's length"),
            kv_tokens=Fact.missing("transformers serve does not tell how many tokens its KV cache holds"),
            max_running=first("transformers serve does not tell how it batches", (one_by_one, "derived")),
        )
