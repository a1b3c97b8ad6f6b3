"""What a site is started with, where each of it comes from (command line, environment, a TOML file, defaults), and what
of it would be unsafe where everybody can reach it."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import os
import re
import secrets
import socket
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from flatout.net import is_loopback
from flatout.site.errors import SettingsError

MEGABYTE: Final = 1024 * 1024
PORT: Final = 8321
ENVIRONMENT: Final = "FLATOUT_SITE_"
"""Every setting may stand in the environment under this and its name in capitals."""


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


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError
    return text.strip()


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # the home of a user that there is not
        raise ValueError from error


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError
    return value


def _networks(value: Any) -> tuple[str, ...]:
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(word == "*" or _is_network(str(word)) for word in words):
        raise ValueError
    return tuple(map(str, words))


Line = Annotated[str, AfterValidator(_line)]
File = Annotated[Path, BeforeValidator(_path)]
Number = Annotated[int, BeforeValidator(_number)]


def _whole(default: int, least: int = 0, most: int = 10**9) -> Any:
    return Field(default, ge=least, le=most, description=f"a whole number from {least} to {most}")


class Typed(BaseSettings):
    """What people may set: by these names in the TOML file, in the environment (after FLATOUT_SITE_, in capitals) and,
    with dashes, on the command line. A description says what a setting takes."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT, env_ignore_empty=True, extra="forbid", hide_input_in_errors=True
    )

    data: File | None = Field(None, description="a path")
    database: Line | None = Field(None, description="a line of text", repr=False)  # may hold a password
    database_file: File | None = Field(None, description="a path")
    files: Line | None = Field(None, description="a line of text")
    host: Line = Field("127.0.0.1", description="a line of text")
    port: Number = _whole(PORT, most=65535)
    results: File | None = Field(None, description="a path")
    public: bool = Field(False, description="true or false")
    debug: bool = Field(False, description="true or false")
    base_url: Line | None = Field(None, description="a line of text")
    secret_file: File | None = Field(None, description="a path")
    registration: Literal["closed", "open"] = Field("closed", description="closed or open")
    moderation: Literal["open", "queue"] = Field("open", description="open or queue")
    publish_per_hour: Number = _whole(60)
    requests_per_minute: Number = _whole(600)
    comparisons_per_minute: Number = _whole(30)
    max_body_mb: Number = _whole(4, 1, 1024)
    max_record_mb: Number = _whole(32, 1, 1024)
    max_samples_mb: Number = _whole(64, 1, 4096)
    proxies: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_networks)] = Field(
        (), description="addresses or networks (10.0.0.0/8), or *"
    )
    title: Line = Field("flatout", description="a line of text")

    @classmethod
    def settings_customise_sources(cls, *_: Any, init_settings: Any, **__: Any) -> tuple[Any]:  # type: ignore[override]
        """What `gathered` has put together, and nothing behind its back."""
        return (init_settings,)


_PATHS: Final = ("data", "database_file", "results", "secret_file")


def make(typed: Mapping[str, Any]) -> Settings:
    """Settings out of what was typed (names of `Typed`, None: not typed; and `config`), the environment and the TOML
    file.

    Makes the data directory, and in it the secret unless the site is public or the secret is given. Raises
    SettingsError, OSError.
    """
    chosen = gathered(typed)
    data = (chosen.data or default_data()).resolve()
    _own_folder(data)
    own_secret = os.environ.get(f"{ENVIRONMENT}SECRET", "").strip()
    if own_secret and chosen.secret_file is None:  # where files cannot be kept from others: in containers
        secret, secret_file = own_secret, None
    else:
        secret, secret_file = _secret(chosen.secret_file, data, make_one=not chosen.public)
    results = chosen.results
    if results is None and not chosen.public and is_loopback(chosen.host):
        results = Path("results")
    as_typed = {field.name for field in fields(Settings)} - {"base_url", "secret_file"}
    return Settings(
        data_dir=data, database_url=_database(chosen, data), files_url=chosen.files or str(data / "files"),
        secret=secret, secret_file=secret_file, base_url=_base_url(chosen.base_url, chosen.host, chosen.port),
        results_dir=None if results is None or str(results) == "none" else results.resolve(),
        max_body_bytes=chosen.max_body_mb * MEGABYTE, max_record_bytes=chosen.max_record_mb * MEGABYTE,
        max_samples_bytes=chosen.max_samples_mb * MEGABYTE,
        **chosen.model_dump(include=as_typed),
    )  # fmt: skip


def gathered(typed: Mapping[str, Any]) -> Typed:
    """Each setting, the command line before the environment before the file. Raises SettingsError."""
    if typed.get("database") and urlsplit(str(typed["database"])).password:
        raise SettingsError(
            "--database has a password in it, and everybody on this machine can read command lines. Put the whole "
            "address into the environment (FLATOUT_SITE_DATABASE) or into a file (FLATOUT_SITE_DATABASE_FILE, or "
            "database = … in the file of --config)"
        )
    config = typed.get("config") or os.environ.get(f"{ENVIRONMENT}CONFIG")
    sources = [
        (str(config), _from_file(Path(config).expanduser()) if config else {}),
        ("the environment", _from_environment()),
        ("the command line", {n: v for n, v in typed.items() if n in Typed.model_fields and v is not None}),
    ]
    values: dict[str, Any] = {}
    for _, source in sources:
        if "database" in source or "database_file" in source:  # the nearer one replaces the other form
            values = {name: value for name, value in values.items() if not name.startswith("database")}
        values |= source
    try:
        return Typed(**values)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        where = next(where for where, source in reversed(sources) if name in source)
        where = ENVIRONMENT + name.upper() if where == "the environment" else where
        shown = "…" if name == "database" else repr(values[name])
        takes = Typed.model_fields[name].description
        raise SettingsError(f"{name.replace('_', '-')} = {shown} ({where}): it takes {takes}") from None


def _from_environment() -> dict[str, Any]:
    known = {ENVIRONMENT + name.upper() for name in (*Typed.model_fields, "config", "secret")}
    unknown = [name for name in os.environ if name.startswith(ENVIRONMENT) and name not in known]
    if unknown:
        raise SettingsError(f"there is no setting {unknown[0]} (in the environment){_near(unknown[0])}")
    return EnvSettingsSource(Typed)()


def _near(name: str) -> str:
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT).lower(), Typed.model_fields, 1)
    return f"; is {near[0]} meant?" if near else f"; there are {', '.join(Typed.model_fields)}"


def _from_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; paths in it count from its folder."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"--config {path}: cannot be read ({why})") from error
    values = {name.replace("-", "_"): value for name, value in content.items()}
    for name in content:
        if name.replace("-", "_") not in Typed.model_fields:
            raise SettingsError(f"{path}: there is no setting {name!r}{_near(name)}")
    for name in _PATHS:
        if isinstance(values.get(name), str) and values[name] not in ("", "none"):
            values[name] = path.absolute().parent / Path(values[name]).expanduser()
    _nobody_else_reads(path, str(values.get("database", "")))
    return values


def _nobody_else_reads(path: Path, url: str) -> None:
    """Raises SettingsError: the database's password lies in a file that everybody may read."""
    if urlsplit(url).password and path.stat().st_mode & 0o007:
        raise SettingsError(f"{path} holds the database's password and every user may read it: chmod 600 {path}")


def default_data() -> Path:
    """Where a site keeps its data unless told otherwise: the user's data folder."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(base) / "flatout" / "site").expanduser()


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


def _database(chosen: Typed, data: Path) -> str:
    url = chosen.database or f"sqlite:///{data / 'site.sqlite3'}"
    if chosen.database_file is not None:
        if chosen.database is not None:
            raise SettingsError("give either database or database-file")
        url = _one_line(chosen.database_file, "database-file")
        _nobody_else_reads(chosen.database_file, url)
    if urlsplit(url).scheme.partition("+")[0] not in ("sqlite", "postgresql"):
        raise SettingsError(
            "database: it takes postgresql://user@host/name or sqlite:///path; without it, a file in --data is used"
        )
    return url


def _one_line(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(f"{name} {path}: cannot be read ({why})") from error
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


# --- safe in public ---------------------------------------------------------------------------------------------------

SECRET_CHARS: Final = 32
SECRET_DISTINCT: Final = 12
_WORDS: Final = re.compile(r"(?i)change|secret|password|example|flatout|default|qwerty|123456|abcdef|letmein")
_MAKE_ONE: Final = "python3 -c 'import secrets; print(secrets.token_urlsafe(48))' > FILE; chmod 600 FILE"


def unsafe(settings: Settings) -> list[str]:
    """What must change before the site may be public, one sentence each with what to type; empty: nothing."""
    host = urlsplit(settings.base_url).hostname or ""
    open_too = ", and anybody can make an account (--registration open)" if settings.registration == "open" else ""
    checks = [
        (not settings.secure, f"the site's address {settings.base_url} is not https, so tokens and cookies could be "
         "read on the way: put a proxy with TLS in front and give --base-url https://NAME"),
        (not _reachable(host), f"the site's address {settings.base_url} is no name that others can reach, and requests "
         "are checked against it: give --base-url https://NAME"),
        (not settings.proxies, "no proxy is named, so all visitors would share its address and its limits: give "
         "--proxy with the address that the proxy connects from, such as --proxy 127.0.0.1"),
        (any(map(_everybody, settings.proxies)), "--proxy names everybody, so a visitor could pretend any address: "
         "name the proxy's own address"),
        (settings.publish_per_hour == 0,
         f"publishing has no limit{open_too}: give --publish-per-hour, such as 60"),
        (settings.requests_per_minute == 0, "requests have no limit: give --requests-per-minute, such as 600"),
        (settings.comparisons_per_minute == 0, "comparisons have no limit: give --comparisons-per-minute, such as 30"),
        (settings.debug, "debug shows the site's insides to visitors: leave it out"),
        (settings.results_dir is not None, "results that are picked up would be public at once: leave --results out "
         "and use flatout publish"),
    ]  # fmt: skip
    return [*_unsafe_secret(settings.secret, settings.secret_file), *(words for wrong, words in checks if wrong)]


def _unsafe_secret(secret: str, path: Path | None) -> Iterator[str]:
    """The secret signs the cookies: who can guess or read it can sign in as anybody."""
    if not secret:
        yield f"there is no secret: make one ({_MAKE_ONE}) and name it with --secret-file FILE"
        return
    if len(secret) < SECRET_CHARS:
        yield f"the secret has {len(secret)} characters; it takes {SECRET_CHARS} random ones: {_MAKE_ONE}"
    elif len(set(secret)) < SECRET_DISTINCT or _WORDS.search(secret) or (secret + secret).find(secret, 1) < len(secret):
        yield f"the secret looks made up, not random: {_MAKE_ONE}"
    try:
        if path is not None and path.stat().st_mode & 0o007:
            yield f"every user of this machine may read or change the secret: chmod 600 {path}"
    except OSError as error:
        yield f"the secret's file {path} cannot be looked at ({error.strerror}): name it with --secret-file FILE"


def _reachable(host: str) -> bool:
    """A name that others can look up: not this machine's, and no bare address."""
    return not is_loopback(host) and "." in host and not _is_network(host)


def _everybody(proxy: str) -> bool:
    return proxy == "*" or ipaddress.ip_network(proxy, strict=False).prefixlen == 0


def _is_network(word: str) -> bool:
    try:
        ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False
    return True
