"""Starting a server from a command, waiting until it answers, and stopping all of it again."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from flatout.engines.base import Found, TargetError, count, dig, option
from flatout.engines.detect import engines
from flatout.engines.endpoint import parse_address
from flatout.engines.http import ControlClient, header_secrets
from flatout.engines.redact import Redactor
from flatout.net import host_port

_POLL_S: Final = 0.3
_TELL_S: Final = 2.0
_LOG_TAIL_BYTES: Final = 64 * 1024
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SHELL_SYNTAX: Final = re.compile(r"[|&;<>()$`*?\[\]{}~\n]|^\s*(?:cd|source|\.|export|ulimit)\s")


class Launched:
    """A server that runs for as long as the `with` block, and not a moment longer.

    `command` is a shell command line; leading `NAME=value` words become its environment, and the shell runs it only if
    it uses the shell's syntax. Its output goes to `log_path` as it is; `log_tail` shows it redacted. `url`: where it
    will answer; None reads it from `--port`/`--host` or the engine's default. `on_wait` is told what is waited for.
    """

    def __init__(
        self,
        command: str,
        *,
        log_path: Path,
        url: str | None = None,
        key: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        ca_file: str | None = None,
        insecure: bool = False,
        ready_timeout_s: float = 1800.0,
        stop_timeout_s: float = 15.0,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        try:
            settings, plain = split(command)
        except ValueError as error:
            raise TargetError("unavailable", f"--launch: the command cannot be read ({error})") from error
        self.argv: tuple[str, ...] = tuple(plain)
        """The words of the command, for the adapters; secrets are still in it."""
        self._run = ["/bin/sh", "-c", command] if needs_shell(command) else plain
        self._env = {**os.environ, **settings}
        found = url or listens_at(settings, plain)
        if found is None:
            raise TargetError("unavailable", "--launch: the command names no --port; give the server's URL as well")
        self.url = found
        variables = (name for kind in engines().values() for name in kind.key_variables)
        key = key or option(plain, "--api-key") or next((settings[v] for v in variables if settings.get(v)), None)
        self.key = key
        """The key that the server wants, as given or as the command says; a secret."""
        self._address = parse_address(self.url, key=key, headers=headers, ca_file=ca_file, insecure=insecure)
        self.redactor = Redactor(secrets=header_secrets(self._address))
        self._log_path = log_path
        self._ready_timeout_s, self._stop_timeout_s = ready_timeout_s, stop_timeout_s
        self._on_wait = on_wait
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.pid: int | None = None

    def __enter__(self) -> Launched:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the server and returns once it lists its models.

        Raises TargetError (unavailable) with its last log lines if it ends before, or does not answer in time; then
        nothing of it is left running.
        """
        if _somebody_listens(self._address.host, self._address.port):
            raise TargetError(
                "unavailable",
                f"something already listens at {self._address.origin}; stop it, or give --launch another --port",
            )
        try:
            self._spawn()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server and everything that it started: SIGTERM, a bounded wait, SIGKILL. May be called again."""
        supervisor = self._supervisor
        if supervisor is None:
            return
        assert supervisor.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed by an earlier call
            supervisor.stdin.write(b"x")
            supervisor.stdin.close()
        for end in (supervisor.terminate, supervisor.kill):
            try:
                supervisor.wait(timeout=self._stop_timeout_s + 15.0)
                break
            except subprocess.TimeoutExpired:
                end()
        if supervisor.stdout is not None:
            supervisor.stdout.close()

    def exit_code(self) -> int | None:
        """The server's exit code (128 + n for signal n) if it has ended, else None."""
        return None if self._supervisor is None else self._supervisor.poll()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's output, redacted; empty if it wrote nothing."""
        try:
            with self._log_path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
                tail = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        shown = [line.rstrip() for line in tail.replace("\r", "\n").splitlines() if line.strip()]
        return self.redactor.text("\n".join(shown[-lines:]))

    def _spawn(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        supervise = str(Path(__file__).with_name("supervise.py"))
        # Fewer seconds of grace than this process waits, so that it never has to kill the supervisor.
        command = [sys.executable, "-I", supervise, f"{self._stop_timeout_s:g}", "--", *self._run]
        with self._log_path.open("wb") as log:
            self._supervisor = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        line = self._supervisor.stdout.readline()
        if not line.strip().isdigit():
            self._supervisor.wait(timeout=10.0)
            raise TargetError("unavailable", f"--launch: {self.log_tail(3) or 'the command could not be started'}")
        self.pid = int(line)

    def _wait_ready(self) -> None:
        begun = time.monotonic()
        told = begun
        with ControlClient(self._address, redactor=self.redactor, timeout_s=10.0) as client:
            while True:
                waiting_for = self._not_ready(client)
                if waiting_for is None:
                    return
                code = self.exit_code()
                if code is not None:
                    raise TargetError("unavailable", f"the server ended with exit code {code}. {self._last_words()}")
                now = time.monotonic()
                if now - begun > self._ready_timeout_s:
                    message = f"the server did not answer within {self._ready_timeout_s:g} s ({waiting_for})"
                    raise TargetError("unavailable", f"{message}. {self._last_words()}")
                if self._on_wait is not None and (now - told >= _TELL_S or told == begun):
                    self._on_wait(f"waiting for the server ({waiting_for}; {now - begun:.0f} s)")
                    told = now
                time.sleep(_POLL_S)

    def _not_ready(self, client: ControlClient) -> str | None:
        """What is still missing, or None once the server lists its models."""
        try:
            reply = client.request("GET", "/models", api=True)
            if reply.status in (401, 403):
                return None  # it answers; that the key is wrong is for `connect` to say
            client.raise_for(reply, self._address.url + "/models")
            listing = client.decode(reply, self._address.url + "/models")
            entry = dig(listing, "data", 0)
            found = Found("", entry if isinstance(entry, dict) else {}, reply.headers)
            for kind in engines().values():
                if kind.recognise_by_list(found, lambda path: None) is not None:
                    return kind.still_loading(client)
        except TargetError as error:
            if error.kind == "refused":
                return "nothing listens yet"
            return error.words or str(error)
        return None

    def _last_words(self) -> str:
        tail = self.log_tail(12)
        return f"Its last lines (all in {self._log_path.name}):\n{tail}" if tail else "It wrote nothing."


def _somebody_listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), timeout=1.0).close()
        return True
    return False


# What a command line says


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """The leading `NAME=value` settings and the words of a command line. Raises ValueError with the reason."""
    words = shlex.split(command)
    environment: dict[str, str] = {}
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if not words:
        raise ValueError("the command is empty")
    return environment, words


def needs_shell(command: str) -> bool:
    """True if the command uses the shell's own syntax outside of quotes (pipes, `&&`, `$HOME`, globs, `cd`)."""
    bare = re.sub(r"'[^']*'", "", command)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", bare)
    expands_in_quotes = any(c in '"'.join(re.findall(r'"((?:[^"\\]|\\.)*)"', bare)) for c in "$`")
    return expands_in_quotes or _SHELL_SYNTAX.search(outside) is not None


def listens_at(environment: Mapping[str, str], argv: Sequence[str]) -> str | None:
    """The URL that a server started so will answer at, from its flags or its engine's default; None if unknown."""
    host = option(argv, "--host", "--hostname", "--server-name") or "127.0.0.1"
    port = count(option(argv, "--port", "-p") or environment.get("PORT"))
    for kind in engines().values():
        given = environment.get(kind.address_variable or "", "").rpartition("://")[2].rstrip("/")
        if given and kind.name in " ".join(argv):
            name, _, number = given.rpartition(":") if given.count(":") == 1 else (given, "", "")
            host, port = name or given, count(number)
    port = port or default_port(argv)
    if port is None or port > 65535:
        return None
    host = host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{host_port(host, port)}"


def default_port(argv: Sequence[str]) -> int | None:
    """The port of the engine that these words start. A program's own name says more than the folder it lies in."""
    words = argv[:6]
    ports = [(name, port) for kind in engines().values() for name, port in kind.programs.items() if port is not None]
    places = (*(word.rpartition("/")[2] for word in words), " ".join(words))
    return next((port for place in places for name, port in ports if name in place), None)


def is_engine(argv: Sequence[str]) -> bool:
    """True if a process of this command line is an engine, not something that merely passes traffic on."""
    words = " ".join(argv).lower()
    return any(name in words for kind in engines().values() for name in kind.programs)
