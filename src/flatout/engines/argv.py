"""The words of a server's command line: which program it starts, and what its flags say. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SHELL_SYNTAX: Final = re.compile(r"[|&;<>()$`*?\[\]{}~\n]|^\s*(?:cd|source|\.|export|ulimit)\s")
_DEFAULT_PORTS: Final = (
    ("sglang", 30000),
    ("llama-server", 8080),
    ("llama_server", 8080),
    ("llamafile", 8080),
    ("ollama", 11434),
    ("text-generation-launcher", 3000),
    ("lmdeploy", 23333),
    ("mlx_lm", 8080),
    ("vllm", 8000),
    ("transformers", 8000),
    ("trtllm-serve", 8000),
)


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


def option(argv: Sequence[str] | None, *names: str) -> str | None:
    """The value of the first of these options that is given (`--x v`, `--x=v`; `_` equals `-`); the last time wins."""
    wanted = {_plain(name) for name in names}
    found: str | None = None
    for position, word in enumerate(argv or ()):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or _plain(name) not in wanted:
            continue
        if equals:
            found = value
        elif argv is not None and position + 1 < len(argv):
            found = argv[position + 1]
    return found


def has(argv: Sequence[str] | None, *names: str) -> bool:
    """True if one of these flags is there, with or without a value."""
    wanted = {_plain(name) for name in names}
    return any(word.startswith("-") and _plain(word.partition("=")[0]) in wanted for word in argv or ())


def count(text: str | None) -> int | None:
    """A flag's value as a count of at least 1; vLLM's `32k` (thousands) and `32K` (1,024s) as it reads them."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([kmgKMG]?)", (text or "").strip())
    if match is None:
        return None
    scale = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    value = int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
    return value if value >= 1 else None


def listens_at(environment: dict[str, str], argv: Sequence[str]) -> str | None:
    """The URL that a server started so will answer at, from its flags or its engine's default; None if unknown."""
    host = option(argv, "--host", "--hostname", "--server-name") or "127.0.0.1"
    port = count(option(argv, "--port", "-p") or environment.get("PORT"))
    if environment.get("OLLAMA_HOST") and "ollama" in " ".join(argv):
        given = environment["OLLAMA_HOST"].rpartition("://")[2].rstrip("/")
        name, _, number = given.rpartition(":") if given.count(":") == 1 else (given, "", "")
        host, port = name or given, count(number)
    port = port or default_port(argv)
    if port is None or port > 65535:
        return None
    host = host.strip("[]")
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def default_port(argv: Sequence[str]) -> int | None:
    """The port that this engine listens on if it is not told another."""
    program = " ".join(word for word in argv[:6])
    return next((port for name, port in _DEFAULT_PORTS if name in program), None)


def _plain(name: str) -> str:
    return ("--" if name.startswith("--") else "-") + name.lstrip("-").replace("_", "-")
