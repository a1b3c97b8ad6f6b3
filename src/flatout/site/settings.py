"""What a site is started with, and where each of it comes from: command line, environment, a TOML file, defaults."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import os
import secrets
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from flatout.net import is_loopback

MEGABYTE: Final = 1024 * 1024
PORT: Final = 8321
ENVIRONMENT: Final = "FLATOUT_SITE_"
"""Every setting may stand in the environment under this and its name in capitals."""
_PLACEHOLDER: Final = "…"


class SettingsError(Exception):
    """A setting that cannot be used; the text names it, where it came from, and what it takes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`data_dir` holds what is not given elsewhere (database, files, secret, rendered pages). `base_url`: how others
    reach the site, without a slash at its end. `results_dir`: local results that are picked up by themselves. `secret`
    signs cookies and cursors, `secret_file` is where it was read. Limits per hour count publishing, reports and new
    tokens; those per minute comparisons, and everything else; 0 is none. `proxies`: addresses whose X-Forwarded-*
    headers are believed."""

    data_dir: Path
    database_url: str = field(repr=False)  # may hold a password
    files_url: str
    secret: str = field(repr=False)
    base_url: str = "http://127.0.0.1:8321"
    host: str = "127.0.0.1"
    port: int = PORT
    title: str = "flatout"
    results_dir: Path | None = None
    public: bool = False
    debug: bool = False
    registration: Literal["closed", "open"] = "closed"
    moderation: Literal["open", "queue"] = "open"
    publish_per_hour: int = 60
    requests_per_minute: int = 600
    comparisons_per_minute: int = 30
    max_body_bytes: int = 4 * MEGABYTE
    max_record_bytes: int = 32 * MEGABYTE
    max_samples_bytes: int = 64 * MEGABYTE
    proxies: tuple[str, ...] = ()
    secret_file: Path | None = None

    @property
    def secure(self) -> bool:
        """Reached over HTTPS: cookies are sent there only."""
        return self.base_url.startswith("https://")


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `least`, `most` bound whole numbers; `choices` a word."""

    kind: Literal["text", "path", "whole", "yes", "words", "choice"]
    least: int = 0
    most: int = 10**9
    choices: tuple[str, ...] = ()


KEYS: Final[Mapping[str, Key]] = {
    "data": Key("path"),
    "database": Key("text"),
    "database_file": Key("path"),
    "files": Key("text"),
    "host": Key("text"),
    "port": Key("whole", most=65535),
    "results": Key("path"),
    "public": Key("yes"),
    "debug": Key("yes"),
    "base_url": Key("text"),
    "secret_file": Key("path"),
    "registration": Key("choice", choices=("closed", "open")),
    "moderation": Key("choice", choices=("open", "queue")),
    "publish_per_hour": Key("whole"),
    "requests_per_minute": Key("whole"),
    "comparisons_per_minute": Key("whole"),
    "max_body_mb": Key("whole", least=1, most=1024),
    "max_record_mb": Key("whole", least=1, most=1024),
    "max_samples_mb": Key("whole", least=1, most=4096),
    "proxies": Key("words"),
    "title": Key("text"),
}
"""Names in the TOML file, in the environment (after FLATOUT_SITE_, in capitals) and, with dashes, on the command
line."""


def make(typed: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Settings out of what was typed (`KEYS`, None: not typed, and `config`), the environment and the TOML file.

    Makes the data directory, and in it the secret unless the site is public or the secret is given. Raises
    SettingsError, OSError.
    """
    environment = os.environ if environment is None else environment
    given = gathered(typed, environment)
    data = given["data"] if "data" in given else default_data(environment)
    data = data.expanduser().resolve()
    _own_folder(data)
    public = bool(given.get("public", False))
    host, port = given.get("host", "127.0.0.1"), given.get("port", PORT)
    own_secret = environment.get(f"{ENVIRONMENT}SECRET", "").strip()
    if own_secret and "secret_file" not in given:  # where files cannot be kept from others: in containers
        secret, secret_file = own_secret, None
    else:
        secret, secret_file = _secret(given.get("secret_file"), data, make_one=not public)
    results = given.get("results", None if public or not is_loopback(host) else Path("results"))
    sizes = {f"max_{what}_bytes": given[f"max_{what}_mb"] * MEGABYTE
             for what in ("body", "record", "samples") if f"max_{what}_mb" in given}  # fmt: skip
    same = ("title", "debug", "registration", "moderation", "publish_per_hour", "requests_per_minute",
            "comparisons_per_minute", "proxies")  # fmt: skip
    return Settings(
        data_dir=data,
        database_url=_database(given, data),
        files_url=given.get("files") or str(data / "files"),
        secret=secret,
        secret_file=secret_file,
        base_url=_base_url(given.get("base_url"), host, port),
        host=host,
        port=port,
        public=public,
        results_dir=None if results is None or str(results) == "none" else results.resolve(),
        **sizes,
        **{name: given[name] for name in same if name in given},
    )


def gathered(typed: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Each setting's value by name, the command line before the environment before the file. Raises SettingsError."""
    if typed.get("database") and urlsplit(str(typed["database"])).password:
        raise SettingsError(
            "--database has a password in it, and everybody on this machine can read command lines. Put the whole "
            "address into the environment (FLATOUT_SITE_DATABASE) or into a file (FLATOUT_SITE_DATABASE_FILE, or "
            "database = … in the file of --config)"
        )
    config = typed.get("config") or environment.get(f"{ENVIRONMENT}CONFIG")
    given = _from_file(Path(config).expanduser()) if config else {}
    for source in (_from_environment(environment), {k: v for k, v in typed.items() if v is not None}):
        if "database" in source or "database_file" in source:
            given.pop("database", None)
            given.pop("database_file", None)
        given |= {name: _value(name, value, "the command line") for name, value in source.items() if name in KEYS}
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    unknown = [
        n for n in environment if n.startswith(ENVIRONMENT) and n.removeprefix(ENVIRONMENT).lower() not in _NAMES
    ]
    if unknown:
        raise SettingsError(f"there is no setting {unknown[0]} (in the environment){_near(unknown[0])}")
    found = {name: environment.get(ENVIRONMENT + name.upper()) for name in KEYS}
    return {name: _value(name, text, ENVIRONMENT + name.upper()) for name, text in found.items() if text}


def _near(name: str) -> str:
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT).lower(), KEYS, 1)
    return f"; is {near[0]} meant?" if near else f"; there are {', '.join(KEYS)}"


def _from_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; paths in it count from its folder."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"--config {path}: cannot be read ({said})") from error
    made: dict[str, Any] = {}
    for typed_name, value in content.items():
        name = typed_name.replace("-", "_")
        if name not in KEYS:
            raise SettingsError(f"{path}: there is no setting {typed_name!r}{_near(name)}")
        made[name] = _value(name, value, str(path))
        if KEYS[name].kind == "path" and str(made[name]) != "none":
            made[name] = path.absolute().parent / made[name]
    if urlsplit(str(made.get("database", ""))).password and path.stat().st_mode & 0o007:
        raise SettingsError(f"{path} holds the database's password and every user may read it: chmod 600 {path}")
    return made


def _value(name: str, value: Any, source: str) -> Any:
    """The value in its own type. Raises SettingsError naming `source`."""
    key = KEYS[name]
    if key.kind == "path" and isinstance(value, str | Path) and str(value):
        return Path(value).expanduser()
    if key.kind == "text" and isinstance(value, str) and value.strip() and value.isprintable():
        return value.strip()
    if key.kind == "choice" and value in key.choices:
        return value
    if key.kind == "yes" and (isinstance(value, bool) or str(value).lower() in _YES | _NO):
        return value if isinstance(value, bool) else str(value).lower() in _YES
    if key.kind == "whole" and not isinstance(value, bool) and str(value).isascii() and str(value).isdigit():
        if key.least <= int(value) <= key.most:
            return int(value)
    elif key.kind == "words" and isinstance(value, str | list | tuple):
        words = value.replace(",", " ").split() if isinstance(value, str) else list(value)
        if all(_address(word) for word in words):
            return tuple(words)
    takes = {
        "path": "a path", "text": "a line of text", "choice": " or ".join(key.choices), "yes": "true or false",
        "whole": f"a whole number from {key.least} to {key.most}", "words": "addresses or networks (10.0.0.0/8), or *",
    }[key.kind]  # fmt: skip
    shown = _PLACEHOLDER if name == "database" else repr(value)
    raise SettingsError(f"{name.replace('_', '-')} = {shown} ({source}): it takes {takes}")


_NAMES: Final = frozenset({*KEYS, "config", "secret"})
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


def _address(word: object) -> bool:
    if word == "*":
        return True
    try:
        ipaddress.ip_network(str(word), strict=False)
    except ValueError:
        return False
    return True


def default_data(environment: Mapping[str, str]) -> Path:
    """Where a site keeps its data unless told otherwise: the user's data folder."""
    base = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base) / "flatout" / "site"


def shown_database(url: str) -> str:
    """The database's address without its password and parameters, for people."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite"):
        return url.removeprefix("sqlite:///")
    where = parts.netloc.rpartition("@")[2]
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme.partition('+')[0]}://{user}{where}{parts.path}"


def _own_folder(path: Path) -> None:
    """The data directory; made for the user alone. Raises SettingsError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingsError(f"--data {path}: the folder cannot be made ({error.strerror or error})") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise SettingsError(f"--data {path}: this user may not write there")


def _database(given: Mapping[str, Any], data: Path) -> str:
    if "database" in given and "database_file" in given:
        raise SettingsError("give either database or database-file")
    if "database_file" in given:
        path = given["database_file"]
        url = _one_line(path, "database-file")
        if urlsplit(url).password and path.stat().st_mode & 0o007:
            raise SettingsError(f"{path} holds the database's password and every user may read it: chmod 600 {path}")
    else:
        url = given.get("database", f"sqlite:///{data / 'site.sqlite3'}")
    scheme = urlsplit(url).scheme
    if scheme.partition("+")[0] not in ("sqlite", "postgresql"):
        raise SettingsError(
            "database: it takes postgresql://user@host/name or sqlite:///path; without it, a file in --data is used"
        )
    return str(url)


def _one_line(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(f"{name} {path}: cannot be read ({said})") from error
    if not text or "\n" in text:
        raise SettingsError(f"{name} {path}: it must hold one line")
    return text


def _secret(path: Path | None, data: Path, *, make_one: bool) -> tuple[str, Path | None]:
    """The secret and its file. Without a file, one is made and kept in the data directory, if that is allowed."""
    if path is not None:
        return _one_line(path, "secret-file"), path
    if not make_one:
        return "", None
    own = data / "secret"
    if not own.exists():
        part = data / f".secret.{secrets.token_hex(8)}.part"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(48) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process made one at the same time: that one holds
            os.link(part, own)
        part.unlink()
    return _one_line(own, "secret-file"), own


def _base_url(typed: str | None, host: str, port: int) -> str:
    if typed is None:
        return default_base_url(host, port)
    try:
        parts = urlsplit(typed)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or parts.username or parts.password or parts.path.rstrip("/"):
        raise SettingsError("base-url: it takes the address that people type, such as https://speed.example.org")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def default_base_url(host: str, port: int) -> str:
    """How the site is reached without a proxy: by its address, or by this machine's name where it listens on all."""
    if host in ("0.0.0.0", "::", "[::]"):
        host = socket.gethostname()
    bare = host.strip("[]")
    return f"http://{f'[{bare}]' if ':' in bare else bare}:{port}"
