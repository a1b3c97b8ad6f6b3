"""Starts the site's one process and ends it: the port, the signals, the words at the start."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import h11
import uvicorn
from sqlalchemy import select
from uvicorn.protocols.http.h11_impl import H11Protocol

from flatout.net import is_loopback
from flatout.show.safe import clean
from flatout.site.app import create_app
from flatout.site.database import Database
from flatout.site.errors import SiteError
from flatout.site.schema import takes
from flatout.site.settings import Settings, default_base_url, shown_database, unsafe
from flatout.site.throttle import network

if TYPE_CHECKING:
    from fastapi import FastAPI

DRAIN_S: Final = 10
"""How long requests may go on after the site was told to end."""
END_S: Final = 20
"""After so long the process ends whatever still runs: a publish that is cut off then leaves nothing behind."""
KEEP_ALIVE_S: Final = 65
"""Longer than the minute after which common proxies drop an idle connection, so they never use one that we closed."""
CONNECTIONS: Final = 1_000
CONNECTIONS_EACH: Final = 100
"""Of one address, or one IPv6 network; where a proxy is named, all come from it, and it has limits of its own."""
SWITCH_S: Final = 0.0005
"""How long a thread may compute while another waits: each request passes the event loop several times, and with the
usual 5 ms it would wait there for every page that is being made."""
COLLECT: Final = (20_000, 20, 50)
"""Records and pages are many objects and few circles: full collections, which stop every thread, are to be rare."""
HEAD_S: Final = 20.0
"""A request's head must have come by then: from the connection on, or from its first byte on a later one."""
LARGEST_HEAD_BYTES: Final = 32 * 1024
BACKLOG: Final = 512
FIRST_LOOK_S: Final = 60.0
MOST_REASONS: Final = 5


class CannotStart(SiteError):
    """The site cannot be started as asked; the text says why and what to type instead."""


def start(settings: Settings, say: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM, then lets requests end for DRAIN_S. `say` hears each line for the person.

    Raises CannotStart (unsafe in public, the port) and SiteError (database, files).
    """
    if settings.public and (dangers := unsafe(settings)):
        lines = "".join(f"\n  - {text}" for text in dangers)
        raise CannotStart(f"the site would be unsafe in public, so it was not started:{lines}")
    _log_to_stderr()
    with _listening(settings) as listener:
        port = listener.getsockname()[1]
        if settings.port != port:
            typed = settings.base_url != default_base_url(settings.host, settings.port)
            address = settings.base_url if typed else default_base_url(settings.host, port)
            settings = replace(settings, port=port, base_url=address)
        app = create_app(settings)
        sys.setswitchinterval(SWITCH_S)
        gc.collect()
        gc.freeze()  # what is loaded by now stays: no collection looks through it again while somebody waits
        gc.set_threshold(*COLLECT)
        server = _Server(_config(app, settings), lambda: _started(settings, app.state.site.database, say))
        before = {number: signal.signal(number, server.signalled) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            server.run(sockets=[listener])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if not server.started:
        raise CannotStart("the site did not start; the lines above say why")
    say("stopped")


class _Server(uvicorn.Server):
    """uvicorn, with our words at the start and an end that comes in any case."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            end = threading.Timer(END_S, _end_now)
            end.daemon = True
            end.start()
        super().handle_exit(sig, frame)

    def signalled(self, sig: int, frame: FrameType | None) -> None:
        """For a signal outside the serving: before it, end at once; after it, uvicorn only repeats what it was told."""
        if not self.should_exit:
            raise KeyboardInterrupt


def _end_now() -> None:
    print(f"flatout: requests still ran {END_S} s after the site was told to end; ended them", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def protocol(each: int, head_s: float = HEAD_S) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1 with two bounds that it has not: how long a request's head may take to come, and how many
    connections an address may have (`each`; 0: any number). Without them, connections that say nothing fill the site.
    """
    counts: Counter[str] = Counter()

    class Bounded(H11Protocol):
        head: asyncio.TimerHandle | None = None
        of: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.of = network(self.client[0]) if self.client else ""
            counts[self.of] += 1
            if each and counts[self.of] > each:
                transport.close()
            else:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            if self.of is not None:
                counts[self.of] -= 1
                if not counts[self.of]:
                    del counts[self.of]
                self.of = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self.head is None and self.conn.our_state is h11.IDLE:  # the beginning of another request
                self._wait()

        def _wait(self) -> None:
            self.head = self.loop.call_later(head_s, self._too_late)

        def _stop(self) -> None:
            if self.head is not None:
                self.head.cancel()
                self.head = None

        def _too_late(self) -> None:
            self.head = None
            if not self.transport.is_closing():
                self.transport.close()

    return Bounded


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_config=None, log_level="warning", ws="none", lifespan="on", server_header=False, backlog=BACKLOG,
        access_log=False,  # it would keep visitors' addresses
        proxy_headers=False,  # the site reads them itself, from the proxies that it was told
        http=protocol(0 if settings.proxies else CONNECTIONS_EACH),  # h11 bounds a head's size; httptools does not
        h11_max_incomplete_event_size=LARGEST_HEAD_BYTES, timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S, limit_concurrency=CONNECTIONS,
    )  # fmt: skip


def _listening(settings: Settings) -> socket.socket:
    """The listening socket, taken before anything else is opened. Raises CannotStart."""
    host, port = settings.host.strip("[]"), settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise CannotStart(f"--host {host}: this machine knows no such name or address") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(_port_words(error, host, port)) from error
    return listener


def _port_words(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        there = default_base_url(host, port)
        return f"port {port} is in use, perhaps by another flatout site: open {there}, or take another with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} is kept for the system: take one above 1023 with --port, and a proxy in front"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: this machine has no such address"
    return f"cannot listen at {host} port {port}: {error.strerror}"


def _started(settings: Settings, database: Database, say: Callable[[str], None]) -> None:
    behind = settings.base_url != default_base_url(settings.host, settings.port)
    say(f"flatout site  {settings.base_url}{f' (listens at {settings.host}:{settings.port})' if behind else ''}")
    say(f"data          {shown_database(settings.database_url)}")
    if not settings.public and not is_loopback(settings.host):
        say("everybody who reaches this machine can read it; publishing takes a token (flatout site token add NAME)")
    say("Ctrl-C ends it")
    if settings.results_dir is not None:
        threading.Thread(target=_picked_up, args=(database, settings.results_dir, say), daemon=True).start()


def _picked_up(database: Database, results: Path, say: Callable[[str], None]) -> None:
    """Waits for the first look into `results` and says what came of it."""
    until = time.monotonic() + FIRST_LOOK_S
    there: set[str] = set()
    outcomes: dict[str, str | None] = {}
    while time.monotonic() < until:
        there = {clean(path.parent.name, 300) for path in results.glob("*/record.json")}
        try:
            with database.read() as conn:
                outcomes = {row.origin: row.outcome for row in conn.execute(select(takes.c.origin, takes.c.outcome))}
        except SiteError:
            return  # the watcher says so itself
        if there <= outcomes.keys():
            break
        time.sleep(0.1)
    looked = sorted(there & outcomes.keys())
    left = [(name, reason) for name in looked if (reason := outcomes[name]) is not None]
    taken = len(looked) - len(left)
    runs = f"{taken} run{'' if taken == 1 else 's'}" if there else "nothing yet; runs that end there come by themselves"
    say(f"picks up      {results}: {runs}" + (f", {len(left)} left out" if left else ""))
    for name, reason in left[:MOST_REASONS]:
        say(f"              {name}: {clean(reason, 300)}")


def _log_to_stderr() -> None:
    """Warnings and faults to stderr, where systemd and containers look for them; no visitor's address is in any."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    for name in ("flatout.site", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING)
        logger.propagate = False
