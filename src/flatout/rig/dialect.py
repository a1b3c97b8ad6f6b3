"""What a dialect answers beside the generation itself: models, limits, metrics, errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from flatout.rig.ask import Ask, Refusal, chat_parts, decode_body, slices
from flatout.rig.config import RigConfig
from flatout.rig.engine import Engine
from flatout.rig.http import Request
from flatout.rig.shape import Headers, Shape, dump
from flatout.rig.tokens import token_id


@dataclass(slots=True)
class Reply:
    """A whole answer. `kind` is its content type; None takes the dialect's JSON type."""

    status: int
    body: bytes = b""
    kind: str | None = None
    headers: Headers = field(default_factory=list)


Answer = Callable[[Reply], None]


class Host(Protocol):
    """What a dialect may use of the server."""

    engine: Engine
    config: RigConfig

    def gauges(self) -> tuple[int, int]:
        """Running and waiting, as old as gauge_lag_ms allows."""

    def probe(self, answer: Callable[[], None], seconds: float) -> None:
        """Run a one-token generation that takes so long, then call `answer`."""


class Dialect(ABC):
    """One engine's manners. A new one is made when the config changes."""

    shape: ClassVar[type[Shape]]
    public: ClassVar[frozenset[str]] = frozenset()  # paths that need no key
    prefix_only: ClassVar[str] = ""  # where only paths that begin so need the key
    has_metrics: ClassVar[bool] = False

    def __init__(self, host: Host, started_s: int) -> None:
        self.host, self.config, self.started_s = host, host.config, started_s

    @abstractmethod
    def json_headers(self) -> Headers: ...

    @abstractmethod
    def stream_headers(self) -> Headers: ...

    @abstractmethod
    def error(self, kind: str, **facts: Any) -> Reply:
        """An error in the engine's own words."""

    @abstractmethod
    def models(self) -> Any:
        """/v1/models."""

    def refuses(self, ask: Ask) -> Refusal | None:
        """What only this engine refuses."""
        return None

    def ends_early(self) -> bool:
        """Output that does not fit the model's length is cut in silence, not refused."""
        return False

    def needs_key(self, path: str) -> bool:
        if not self.config.api_key or path in self.public:
            return False
        return path.startswith(self.prefix_only)

    def answer(self, request: Request, reply: Answer) -> bool:
        """Answer anything but generation; False if the path is unknown."""
        if request.method == "GET":
            if request.path == "/v1/models":
                reply(self.json(self.models()))
                return True
            if request.path == "/metrics" and self.has_metrics and self.config.metrics:
                reply(Reply(200, self.metrics_text().encode(), self.metrics_kind()))
                return True
            return self.get(request, reply)
        if request.method == "POST":
            return self.post(request, reply)
        return False

    def get(self, request: Request, reply: Answer) -> bool:
        return False

    def post(self, request: Request, reply: Answer) -> bool:
        return False

    def metrics_text(self) -> str:
        return ""

    def metrics_kind(self) -> str:
        return "text/plain; version=1.0.0; charset=utf-8"

    def json(self, value: Any, status: int = 200) -> Reply:
        return Reply(status, dump(value))

    def tokenize(self, request: Request, name: str) -> list[int]:
        """The token ids of the request's text under `name`, or of its chat messages. Raises Refusal."""
        body = decode_body(request.body)
        if isinstance(body.get("messages"), list):
            parts = chat_parts(body["messages"], self.config)
        elif isinstance(body.get(name), str):
            parts = [body[name]]
        else:
            raise Refusal("missing", name=name)
        return [item if isinstance(item, int) else token_id(item) for part in slices(parts) for item in part]


def exposition(rows: list[tuple[str, str, str, list[tuple[dict[str, str], float]]]]) -> str:
    """Prometheus text from (name, type, help, [(labels, value)])."""
    out = []
    for name, kind, words, samples in rows:
        out += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            out.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")
    return "\n".join(out) + "\n"
