"""What every connection needs, of control calls, the load core and publishing: look-up, TLS settings, Retry-After.

The load core has this in its own process, so it imports nothing but the standard library.
"""

from __future__ import annotations

import email.utils
import ipaddress
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any

Address = tuple[int, Any]
"""Address family and the socket address to connect to."""
Answers = queue.SimpleQueue[list[Address] | Exception]


def look_up(host: str, port: int) -> Answers:
    """The addresses of a host, or the OSError or UnicodeError that it came to, as one item of a queue.

    The system's look-up cannot be bounded, so it runs in a thread of its own and the caller waits as long as it wants.
    """
    answers: Answers = queue.SimpleQueue()

    def ask() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put(list(dict.fromkeys((int(family), address) for family, _, _, _, address in entries)))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="flatout-dns", daemon=True).start()
    return answers


def host_port(host: str, port: int, scheme: str | None = None) -> str:
    """`host:port` with IPv6 in brackets; the port is left out where it is the scheme's own."""
    name = f"[{host}]" if ":" in host else host
    return name if scheme is not None and port == {"http": 80, "https": 443}[scheme] else f"{name}:{port}"


def is_loopback(host: str) -> bool:
    """True for names and addresses that reach this machine alone."""
    bare = host.strip("[]").rstrip(".").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(bare.partition("%")[0]).is_loopback
    except ValueError:
        return False


def tls_context(ca_file: str | None, *, insecure: bool) -> ssl.SSLContext:
    """The settings of a TLS client. `insecure`: any certificate will do. Raises OSError for a CA file of no use."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def retry_after_s(headers: Mapping[str, str], *, now_s: float | None = None) -> float | None:
    """Seconds to wait by an answer's headers (names in lower case): Retry-After, as seconds or a date (RFC 9110,
    10.2.3), or the finer `retry-after-ms`; 0 for a time that is over. None where they say nothing."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text):
            return float(text[:300]) * scale  # more digits would be infinity
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - (time.time() if now_s is None else now_s))
    except (ValueError, TypeError, OverflowError):
        return None
