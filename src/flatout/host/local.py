"""Is the server on this machine, and which process is it?"""

from __future__ import annotations

import ipaddress
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flatout.net import look_up


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process as the system shows it. `argv` may hold keys: redact it before it is kept, shown or logged.

    The environment is not read. `argv` is None, with `argv_reason`, where the process has put a title in its place.
    `started_unix_s`: seconds since 1970, UTC.
    """

    pid: int
    argv: tuple[str, ...] | None
    exe_name: str | None
    started_unix_s: float
    argv_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens on a port; `process` is None with the `reason` where that cannot be told."""

    process: ProcessInfo | None
    reason: str | None = None


# These listen for somebody else: their command line says nothing about the server behind them.
_FORWARDERS = (
    "ssh sshd docker-proxy rootlessport slirp4netns pasta pasta.avx2 gvproxy kubectl kube-proxy socat conmon nginx "
    "haproxy envoy traefik caddy cloudflared ngrok tailscaled com.docker.backend wslrelay.exe"
)


def is_local(host: str, *, timeout_s: float = 3.0) -> bool:
    """Does this host name or address lead to this machine: loopback, "any", or an address of one of its interfaces?

    A URL is taken too. The name is looked up for at most `timeout_s`; a name that cannot be looked up is not local.
    """
    name = _host_of(host)
    if not name:
        return False
    addresses = _resolve(name, timeout_s)
    own = _own_addresses()
    return bool(addresses) and all(_is_own(address, own) for address in addresses)


def _host_of(host: str) -> str:
    text = host.strip()
    if "://" in text:
        try:
            text = urlsplit(text).hostname or ""
        except ValueError:
            return ""
    return text.strip("[]")


def _resolve(name: str, timeout_s: float) -> set[str]:
    """All addresses of a name; none if it is not known by then."""
    try:
        return {str(ipaddress.ip_address(name))}
    except ValueError:
        pass
    try:
        found = look_up(name, 0).get(timeout=timeout_s)
    except queue.Empty:
        return set()
    return {str(address[0]) for _, address in found} if isinstance(found, list) else set()


def _own_addresses() -> set[str]:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        interfaces = psutil.net_if_addrs()
    except OSError:
        return set()
    return {entry.address.partition("%")[0] for entries in interfaces.values() for entry in entries}


def _is_own(address: str, own: set[str]) -> bool:
    plain = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(plain, "ipv4_mapped", None)
    plain = mapped or plain
    return plain.is_loopback or plain.is_unspecified or str(plain) in own


def listening_process(port: int) -> Listener:
    """The process that listens on this TCP port of this machine, if the system lets us see it.

    Where several do (worker processes that share the port), the one that was started first.
    """
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        listening = [c for c in psutil.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN and c.laddr]
    except psutil.AccessDenied:
        return Listener(None, "this system lists the sockets of other processes to an administrator only")
    except (psutil.Error, OSError, RuntimeError) as error:
        return Listener(None, f"the sockets of this machine cannot be listed: {error}")
    there = [c for c in listening if c.laddr.port == port]
    pids = {c.pid for c in there if c.pid}
    if not there:
        return Listener(None, f"no process that is visible here listens on port {port} (it may be in a container)")
    if not pids:
        return Listener(None, f"the process on port {port} belongs to another user; run as that user to read it")
    found = [info for pid in pids if (info := process_info(pid)) is not None]
    if not found:
        return Listener(None, f"the process on port {port} belongs to another user or has just ended")
    first = min(found, key=lambda info: (info.started_unix_s, info.pid))
    if (first.exe_name or "").lower() in _FORWARDERS.split():
        return Listener(None, f"port {port} is held by {first.exe_name}, which only passes the traffic on")
    return Listener(first)


def package_version(argv: Sequence[str], package: str) -> str | None:
    """The version of a Python package in the environment that a command line runs from: that of its interpreter or
    script (`ENV/bin/python -m …`, `ENV/bin/transformers serve`). None where there is no such environment to read."""
    for word in argv[:2]:
        path = Path(word)
        if not path.is_absolute() or path.parent.name not in ("bin", "Scripts"):
            continue
        try:
            found = sorted(path.parent.parent.glob(f"[Ll]ib*/**/site-packages/{package}-*.dist-info"))
        except OSError:
            continue
        if found:
            return found[-1].name.removeprefix(f"{package}-").removesuffix(".dist-info")
    return None


def process_info(pid: int) -> ProcessInfo | None:
    """None where there is no such process or it is not ours to read."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            argv, name, started = process.cmdline(), process.name(), process.create_time()
    except (psutil.Error, OSError, ValueError, OverflowError):
        return None
    reason = None
    if not argv:
        reason = "the process has no command line"
    elif len(argv) == 1 and ("::" in argv[0] or " " in argv[0].strip()):
        reason = "the process has put a title in place of its command line"
    return ProcessInfo(pid, None if reason else tuple(argv), name or None, started, reason)
