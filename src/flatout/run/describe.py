"""Who the server is and what it stands on, as the record's facts: each with where it came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import urlsplit

from flatout import record as rec
from flatout.engines.detect import Target
from flatout.engines.endpoint import parse_address
from flatout.engines.launch import is_engine
from flatout.engines.probe import Capabilities
from flatout.host.hardware import hardware_from
from flatout.host.local import ProcessInfo, is_local, listening_process, package_version
from flatout.host.machine import Machine, describe
from flatout.plan import Limits
from flatout.run.options import Options

_GB: Final = 1e9


def on_host(value: Any, reason: str | None = None) -> rec.Fact:
    """A value read on this machine, or why it is missing."""
    if value is None:
        return rec.Fact(reason=reason or "this system does not say")
    return rec.Fact(value=value, source="host")


def server_process(url: str) -> ProcessInfo | None:
    """The server's process where it is on this machine, ours to read, and an engine by its command line: what merely
    passes traffic on must not be taken for the server."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if not parts.hostname or not is_local(parts.hostname):
        return None
    process = listening_process(port).process
    return process if process is not None and is_engine(process.argv or ()) else None


def engine_facts(target: Target, options: Options, argv: Sequence[str] | None = None) -> rec.Engine:
    """What the engine says of itself; a version that the user (or the embedded engine's package) gives wins."""
    engine = target.engine()
    installed = package_version(argv, target.adapter.name) if engine.version.value is None and argv else None
    if installed is not None:
        engine.version = rec.Fact(value=installed, source="host")
    if options.engine_version is not None:
        version = target.redactor.text(options.engine_version)
        engine.version = rec.Fact(value=version, source=options.engine_version_source)
    return engine


def room_facts(target: Target, options: Options) -> rec.ServerRoom:
    """The server's limits; what the user typed wins over what the server says, and is named as typed."""
    room = target.adapter.room()
    typed = {
        "model_length": options.model_length,
        "kv_tokens": options.kv_tokens,
        "max_running": options.max_running,
    }
    for name, value in typed.items():
        if value is not None:
            setattr(room, name, rec.Fact(value=value, source="typed"))
    return room


def limits_of(room: rec.ServerRoom) -> Limits:
    def number(fact: rec.Fact) -> int | None:
        return int(fact.value) if isinstance(fact.value, int | float) else None

    return Limits(number(room.model_length), number(room.kv_tokens), number(room.max_running))


def protocol(target: Target, capabilities: Capabilities, options: Options) -> rec.Protocol:
    """How requests are made. What the user adds by hand is redacted by structure."""
    redactor, address = target.redactor, target.address
    sampling = redactor.tree(json.loads(options.extra_body))
    if options.temperature is not None:
        sampling = {"temperature": options.temperature, **sampling}
    return rec.Protocol(
        url=redactor.url(address.url),
        api=capabilities.api,
        api_reason="asked for" if options.api != "auto" else None,
        fields=dict(capabilities.fields),
        dropped=[(name, redactor.text(words)) for name, words in capabilities.dropped],
        ignored=[(name, redactor.text(words)) for name, words in capabilities.ignored],
        max_tokens_field=capabilities.max_tokens_field,
        reports=asdict(capabilities.reports),
        template_tokens=capabilities.template_tokens,
        sampling=sampling or {"note": "the server's defaults"},
        timeouts_s={
            "connect": options.timeouts.connect_s,
            "first_token": options.timeouts.first_byte_s,
            "idle": options.timeouts.idle_s,
            "total": options.timeouts.total_s,
        },
        tls=address.scheme == "https",
        proxy=address.proxy is not None,
    )


def machine_facts(machine: Machine | None = None) -> dict[str, rec.Fact]:
    """This machine as facts."""
    described = machine or describe()
    why = described.missing
    facts = {
        "type": rec.Fact(value=described.kind, source="host", reason=described.kind_reason),
        "cpu": on_host(described.cpu_model, why.get("cpu_model")),
        "physical_cores": on_host(described.physical_cores, why.get("physical_cores")),
        "logical_cores": on_host(described.logical_cores),
        "usable_cores": on_host(described.usable_cores),
        "ram_gb": on_host(round(described.ram_bytes / _GB, 1) if described.ram_bytes else None),
        "os": on_host(described.os, why.get("os")),
        "kernel": on_host(described.kernel, why.get("kernel")),
        "architecture": on_host(described.architecture),
        "python": on_host(described.python),
    }
    if described.ram_limit_bytes is not None:
        facts["ram_limit_gb"] = on_host(round(described.ram_limit_bytes / _GB, 1))
    for name, value in (("container", described.container), ("virtualisation", described.virtualisation)):
        if value:
            facts[name] = on_host(value)
    if described.wsl:
        facts["wsl"] = on_host(True)
    facts |= _gpu_facts(described)
    return facts


def _gpu_facts(machine: Machine) -> dict[str, rec.Fact]:
    if not machine.gpus:
        return {"gpu": rec.Fact(reason=machine.missing.get("gpus") or "no GPU was found")}
    facts: dict[str, rec.Fact] = {}
    for i, gpu in enumerate(machine.gpus):
        end = "" if i == 0 else f"_{i + 1}"
        facts[f"gpu{end}"] = on_host(gpu.model)
        facts[f"gpu_count{end}"] = on_host(gpu.count)
        facts[f"gpu_memory_gb{end}"] = on_host(
            round(gpu.memory_bytes / _GB, 1) if gpu.memory_bytes else None, "shared with the machine"
        )
        facts[f"gpu_driver{end}"] = on_host(gpu.driver)
        facts[f"gpu_power_limit_w{end}"] = on_host(gpu.power_limit_w)
    return facts


def hardware(target: Target, options: Options) -> rec.Hardware:
    """The server's hardware: as typed, else this machine's where the server is on it, else only the client's."""
    if options.hardware is not None:
        spec = {k: v for k, v in asdict(hardware_from(options.hardware)).items() if v is not None}
        redact = target.redactor.text
        facts = {k: rec.Fact(value=redact(v) if isinstance(v, str) else v, source="typed") for k, v in spec.items()}
        return rec.Hardware(describes="server, as typed", facts=facts)
    if is_local(target.address.host) and target.address.proxy is None and not _passed_on(target.address.port):
        return rec.Hardware(describes="server", facts=machine_facts())
    return rec.Hardware(describes="client only", facts=machine_facts())


def _passed_on(port: int) -> bool:
    """Whether the port is held by something that only passes traffic on (ssh, a container's proxy): the server is
    elsewhere then, or in a container that may see other hardware."""
    return "passes the traffic on" in (listening_process(port).reason or "")


def check_hardware(text: str | None) -> None:
    """Raises HardwareError now rather than after a server was started."""
    if text is not None:
        hardware_from(text)


def check_url(url: str | None) -> None:
    """Raises TargetError for what is no URL, before anything is started."""
    if url is not None:
        parse_address(url)
