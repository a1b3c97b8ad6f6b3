"""From a URL to a target: which models are there, which engine serves them, and its adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar

from flatout.engines import ENGINES
from flatout.engines.base import Found, Source, TargetError, dig, text
from flatout.engines.endpoint import Address, parse_address
from flatout.engines.generic import Adapter
from flatout.engines.http import ControlClient, header_secrets
from flatout.engines.redact import Redactor
from flatout.record import Engine, Fact, ServedModel

Facts = TypeVar("Facts", Engine, ServedModel)

_MORE_SHOWN: Final = 12


@cache
def engines() -> Mapping[str, type[Adapter]]:
    """The class of each engine, out of the file of its name."""
    return {name: getattr(import_module(f"flatout.engines.{name}"), name.capitalize()) for name in ENGINES}


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answers, with the adapter of its engine. `notes` are sentences for the user."""

    adapter: Adapter
    client: ControlClient
    address: Address
    model: str
    models: tuple[str, ...]
    notes: tuple[str, ...]
    redactor: Redactor

    def close(self) -> None:
        self.client.close()

    def engine(self) -> Engine:
        """What the engine says of itself, redacted."""
        return self._redacted(self.adapter.engine(), ("version", "commit"))

    def served_model(self) -> ServedModel:
        """What the engine says of the model, redacted; `served_as` as typed where it lists none."""
        model = self.adapter.served_model()
        if not self.models:
            model.served_as.source = "typed"
        return self._redacted(model)

    def _redacted(self, facts: Facts, but: Sequence[str] = ()) -> Facts:
        """Not versions and commits, in which numbers with dots would be taken for addresses."""
        for name, fact in facts:
            if isinstance(fact, Fact) and isinstance(fact.value, str) and name not in but:
                redact = self.redactor.command if name == "launch_command" else self.redactor.text
                fact.value = redact(fact.value)
        return facts


@dataclass(frozen=True, slots=True)
class _Listing:
    entries: tuple[Mapping[str, Any], ...]
    headers: Mapping[str, str]
    there: bool
    """False where the server has no /v1/models at all."""


def connect(
    url: str,
    *,
    model: str | None = None,
    key: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    ca_file: str | None = None,
    insecure: bool = False,
    engine: str | None = None,
    argv: Sequence[str] | None = None,
    argv_source: Source = "host",
    secrets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Target:
    """Reaches the server, settles its base path and model, and recognises its engine with a few cheap GETs.

    `engine` (one of ENGINES) overrides what is recognised. `argv`: the server's command line, where it is known, with
    `argv_source` "typed" (by --launch) or "host" (read from its process). Once `stopping` is true, nothing more is
    asked. Raises TargetError in one sentence; of the kind "stopped" if `stopping` was why.
    """
    if engine is not None and engine not in ENGINES:
        raise TargetError("model", f"there is no engine {engine!r}; one of: {', '.join(ENGINES)}")
    address = parse_address(url, key=key, headers=headers, ca_file=ca_file, insecure=insecure, environ=environ)
    redactor = Redactor(secrets=(*header_secrets(address), *secrets))

    def client_for(base_path: str) -> ControlClient:
        return ControlClient(replace(address, base_path=base_path), redactor=redactor, stopping=stopping)

    client, listing = _reach(address, client_for, model)
    try:
        target = _settle(client, listing, model, engine, tuple(argv) if argv else None, argv_source)
        client.raise_if_stopped()  # on the way it may have been taken for an answer that is not there
    except BaseException:
        client.close()
        raise
    client.stopping = None  # what is told to the server at a stop must still reach it
    return target


def _settle(
    client: ControlClient,
    listing: _Listing,
    model: str | None,
    engine: str | None,
    argv: tuple[str, ...] | None,
    argv_source: Source,
) -> Target:
    entry, notes = _choose(client, listing, model)
    name = text(entry.get("id")) or ""
    found = Found(name, entry, listing.headers, {}, argv, argv_source)
    if engine is None:
        engine, answers, evidence = recognise(client, found)
        found = replace(found, answers=answers)
        notes.append(evidence)
    adapter = engines()[engine](client, found)
    return Target(
        adapter=adapter,
        client=client,
        address=client.address,
        model=name,
        models=_names(listing),
        notes=tuple(notes),
        redactor=client.redactor,
    )


def _reach(
    address: Address, client_for: Callable[[str], ControlClient], model: str | None
) -> tuple[ControlClient, _Listing]:
    """A client whose base path is the one under which the server lists its models, among the likely ones.

    A server that answers but lists none is accepted where the model is named: the probe will show if it is one.
    """
    bases = [address.base_path]
    if not address.base_path.endswith("/v1"):
        bases.insert(0, address.base_path + "/v1")
    failure: TargetError | None = None
    for base in bases:
        client = client_for(base)
        try:
            return client, _list(client)
        except BaseException as error:
            client.close()
            # Only a wrong path is a reason to try the next one, and the first refusal says most.
            if not isinstance(error, TargetError) or error.status is None:
                raise
            if error.kind not in ("not_found", "not_a_server"):
                raise
            failure = failure or error
    assert failure is not None
    if model is None or failure.kind != "not_found":
        raise failure
    return client_for(bases[-1]), _Listing((), {}, False)


def _list(client: ControlClient) -> _Listing:
    reply = client.request("GET", "/models", api=True)
    url = client.address.url + "/models"
    client.raise_for(reply, url)
    return _Listing(entries_of(client.decode(reply, url), client.shown(url)), reply.headers, True)


def entries_of(content: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    """The models of a /v1/models answer; raises TargetError if it is none. Entries without an id are passed over."""
    data = content if isinstance(content, list) else dig(content, "data")
    if not isinstance(data, list):
        raise TargetError(
            "not_a_server", f"{where} lists no models: this is not an OpenAI-compatible server", status=200
        )
    return tuple(e for e in data if isinstance(e, dict) and text(e.get("id")))


def _choose(client: ControlClient, listing: _Listing, model: str | None) -> tuple[Mapping[str, Any], list[str]]:
    names = _names(listing)
    where = client.address.url
    if model is not None:
        for entry in listing.entries:
            if model in (entry["id"], entry["id"].removesuffix(":latest"), *_aliases(entry)):
                return entry, []
        if not listing.there:
            return {"id": model}, ["The server does not list its models; the name is taken as given."]
        there = f"it has: {_shown(names)}" if names else "it lists none"
        raise TargetError("model", f"the server at {where} has no model {model!r}; {there}")
    if not names:
        raise TargetError("model", f"the server at {where} lists no model (none loaded?); name one with --model")
    if len(names) == 1:
        return listing.entries[0], []
    note = f"The server has {len(names)} models; the first, {names[0]}, is measured."
    return listing.entries[0], [f"{note} --model takes another: {_shown(names[1:])}."]


def _aliases(entry: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = entry.get("aliases")
    return tuple(a for a in aliases if isinstance(a, str)) if isinstance(aliases, list) else ()


def _names(listing: _Listing) -> tuple[str, ...]:
    return tuple(str(entry["id"]) for entry in listing.entries)


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _MORE_SHOWN
    return ", ".join(names[:_MORE_SHOWN]) + (f" and {more} more" if more > 0 else "")


def recognise(client: ControlClient, found: Found) -> tuple[str, dict[str, Any], str]:
    """The engine, the answers of the paths asked on the way, and the evidence as a sentence. A handful of GETs.

    An engine's own words (Server header, owner of the model) come first; behind a gateway that hides them its own
    endpoints tell.
    """
    answers: dict[str, Any] = {}

    def ask(path: str) -> Any:
        if path not in answers:
            try:
                answers[path] = client.ask("GET", path)
            except TargetError:
                answers[path] = None
        return answers[path]

    by_list = ((name, kind.recognise_by_list) for name, kind in engines().items())
    by_endpoints = ((name, kind.recognise_by_endpoints) for name, kind in engines().items())
    for name, recognised in (*by_list, *by_endpoints):
        evidence = recognised(found, ask)
        if evidence is not None:
            return name, answers, evidence
    raise AssertionError("the generic engine takes every server")
