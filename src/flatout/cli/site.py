"""`flatout site`: keeps and shows runs; its commands operate it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flatout.cli.options import EXIT_OK, Json, UseError, command, count, flag, option, say

if TYPE_CHECKING:
    from flatout.site.settings import Settings

_PARTS: Final = (
    "fastapi", "uvicorn", "jinja2", "sqlalchemy", "alembic", "fsspec", "python_multipart", "itsdangerous", "limits",
    "pydantic_settings",
)  # fmt: skip
_SITE: Final = "The site"
_WHERE: Final = "Where its data is"
Data = Annotated[
    Path | None,
    option("Folder of the site's data (default: ~/.local/share/flatout/site).", "FOLDER", panel=_WHERE),
]
Database = Annotated[
    str | None,
    option(
        "postgresql://user@host/name instead of a file; with a password: FLATOUT_SITE_DATABASE.", "URL",
        panel=_WHERE,
    ),
]  # fmt: skip
Files = Annotated[str | None, option("Where records lie: a folder, or s3://bucket/folder.", "URL", panel=_WHERE)]
Config = Annotated[Path | None, option("TOML file with settings; what is typed goes first.", "FILE", panel=_WHERE)]

app = typer.Typer(
    help="Keep, browse, compare and publish runs: starts the site; the commands below operate it.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
token = typer.Typer(help="Tokens: who may publish.", no_args_is_help=True)
app.add_typer(token, name="token")


@app.callback()
def site(
    context: typer.Context,
    data: Data = None,
    database: Database = None,
    files: Files = None,
    config: Config = None,
    port: Annotated[int | None, option("Port (8321).", "N", min=0, max=65535, panel=_SITE)] = None,
    host: Annotated[str | None, option("Address to listen at (127.0.0.1: this machine alone).", panel=_SITE)] = None,
    results: Annotated[
        Path | None, option("Results to pick up (results, if for this machine alone); none for none.", panel=_SITE)
    ] = None,
    public: Annotated[
        bool | None, flag("For everybody: refuses to start with unsafe settings.", "--public", panel=_SITE)
    ] = None,
    base_url: Annotated[str | None, option("The address that people type, https://…", panel=_SITE)] = None,
    secret_file: Annotated[Path | None, option("File with the secret that signs cookies.", panel=_SITE)] = None,
    registration: Annotated[str | None, option("closed, or open: people make accounts.", panel=_SITE)] = None,
    moderation: Annotated[str | None, option("open, or queue: a moderator looks first.", panel=_SITE)] = None,
    publish_per_hour: Annotated[int | None, option("Limit for each account and address; 0: none.", panel=_SITE)] = None,
    requests_per_minute: Annotated[int | None, option("Limit for each address; 0: none.", panel=_SITE)] = None,
    comparisons_per_minute: Annotated[int | None, option("Limit for each address; 0: none.", panel=_SITE)] = None,
    proxies: Annotated[
        list[str] | None,
        option("Address or network of a proxy in front; repeatable.", "NETWORK", "--proxy", panel=_SITE),
    ] = None,
    title: Annotated[str | None, option("The site's name.", panel=_SITE)] = None,
) -> None:
    """Keep, browse, compare and publish runs: starts the site. The commands below operate it."""
    context.obj = {name: value for name, value in locals().items() if name != "context"} | {"proxies": proxies or None}
    if context.invoked_subcommand is None:
        command(_serve)(context.obj)


def _serve(typed: Mapping[str, Any]) -> int:
    """Serves until Ctrl-C."""
    with _operating("stopped before the site had started"):
        settings = _settings(typed)
        from flatout.site.serve import start

        start(settings, say)
    return EXIT_OK


def _operator(group: typer.Typer, name: str, stopped: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that works on the site's data: `function` gets the settings first, then what was typed.

    The options that say where the data is may stand before the command's name or after it. `stopped`: what Ctrl-C
    leaves, in words.
    """

    def declared(function: Callable[..., None]) -> Callable[..., None]:
        def work(context: typer.Context, data: Data = None, database: Database = None, files: Files = None,
                 config: Config = None, **typed: Any) -> int:  # fmt: skip
            where = {"data": data, "database": database, "files": files, "config": config}
            given = {**(context.obj or {}), **{key: value for key, value in where.items() if value is not None}}
            with _operating(stopped):
                function(_settings(given), **typed)
            return EXIT_OK

        context, *where, _ = inspect.signature(work, eval_str=True).parameters.values()
        _, *own = inspect.signature(function, eval_str=True, locals={"Settings": Any}).parameters.values()
        shown = command(work)
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (context, *own, *where)]
        shown.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        shown.__annotations__ = {p.name: p.annotation for p in parameters}
        group.command(name, help=function.__doc__)(shown)
        return function

    return declared


def _settings(typed: Mapping[str, Any]) -> Settings:
    """Raises UseError where the extra is missing, SettingsError where a setting cannot be used."""
    missing = [name for name in _PARTS if find_spec(name) is None]
    if missing:
        raise UseError(f"the site needs some more packages ({', '.join(missing)}): pip install 'flatout[site]'")
    from flatout.site.settings import make

    settings = make(typed)
    if settings.database_url.startswith("postgresql") and find_spec("psycopg") is None:
        raise UseError("PostgreSQL needs one more package: pip install 'flatout[site,postgres]'")
    return settings


@contextmanager
def _operating(stopped: str) -> Iterator[None]:
    """The operator is told the database's own reason, which visitors are not. `stopped`: the words for Ctrl-C.

    Raises UseError for a database or files that cannot be used.
    """
    from flatout.site.errors import Unavailable

    try:
        yield
    except Unavailable as error:
        from flatout.site.operate import reason

        why = reason(error)
        if why is None:
            raise
        raise UseError(f"the site's database or files cannot be used: {why}") from error
    except KeyboardInterrupt:
        raise UseError(stopped) from None


@_operator(token, "add", "stopped; no token was made")
def token_add(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="The account's name; it is made if it is missing.")],
    scopes: Annotated[str, option("publish, or publish,moderate.")] = "publish",
    label: Annotated[str, option("What the token is for.")] = "",
    days: Annotated[int | None, option("Ends after so many days (default: never).", min=1, max=36500)] = None,
) -> None:
    """Make a token for an account and print it, this once."""
    from flatout.site import operate

    new = operate.token_add(settings, name, scopes.replace(",", " ").split(), label, days)
    say(f"a token for {new.name} ({', '.join(new.scopes)}){f', until {new.expires}' if new.expires else ''}.")
    say("It is shown this once; only its hash is kept:")
    print(new.text)


@_operator(token, "list", "stopped")
def token_list(settings: Settings, json_output: Json = False) -> None:
    """List all tokens: number, name, how it begins, what it may, when it was used."""
    from flatout.show.safe import clean
    from flatout.site import operate

    rows = operate.token_list(settings)
    if json_output:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print("there are no tokens yet: flatout site token add NAME makes one")
        return
    lines = [list(rows[0]), *(["–" if v in (None, "") else clean(v, 80) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


@_operator(token, "revoke", "stopped; look with token list whether the token still works")
def token_revoke(
    settings: Settings,
    number: Annotated[int, typer.Argument(help="The token's number, as token list has it.", metavar="ID")],
) -> None:
    """End a token at once."""
    from flatout.site import operate

    operate.token_revoke(settings, number)
    say(f"token {number} is revoked")


@_operator(app, "backup", "stopped; no backup was written")
def backup(settings: Settings, file: Annotated[Path, typer.Argument(help="Archive to write.")]) -> None:
    """Write database and files into one archive; the site may go on running."""
    from flatout.show.numbers import size
    from flatout.site import operate

    held = operate.backup(settings, file)
    say(f"{file}: {count(held.runs, 'run')}, {count(held.files, 'file')}, {size(file.stat().st_size)}")


@_operator(app, "restore", "stopped; nothing was restored")
def restore(settings: Settings, file: Annotated[Path, typer.Argument(help="Archive that backup wrote.")]) -> None:
    """Fill an empty site from an archive, on SQLite or PostgreSQL."""
    from flatout.site import operate
    from flatout.site.settings import shown_database

    if not file.is_file():
        raise UseError(f"there is no file {file}")
    held = operate.restore(settings, file)
    are = "are" if held.runs + held.files != 1 else "is"
    where = shown_database(settings.database_url)
    say(f"{count(held.runs, 'run')} and {count(held.files, 'file')} {are} back, in {where}")


@_operator(app, "migrate", "stopped; the database is as it was")
def migrate(settings: Settings) -> None:
    """Bring the database up to this flatout (the site does so itself as it starts)."""
    from flatout.site import operate
    from flatout.site.settings import shown_database

    operate.migrate(settings)
    say(f"{shown_database(settings.database_url)} is up to date")
