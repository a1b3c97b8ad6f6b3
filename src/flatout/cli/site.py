"""The command line of `flatout site`: parses, calls; see cli.py. Everything heavy is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option with its help and the panel that the help stands in."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


_SITE = "The site"
_WHERE = "Where its data is"
_Data = Annotated[
    Path | None, option("Folder of the site's data (default: ~/.local/share/flatout/site).", panel=_WHERE)
]
_Database = Annotated[
    str | None,
    option("postgresql://user@host/name instead of a file; with a password: FLATOUT_SITE_DATABASE.", panel=_WHERE),
]
_Files = Annotated[str | None, option("Where records lie: a folder, or s3://bucket/folder.", panel=_WHERE)]
_Config = Annotated[Path | None, option("TOML file with settings; what is typed goes first.", panel=_WHERE)]

site_app = typer.Typer(
    help="Keep, browse, compare and publish runs: starts the site; the commands below operate it.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
token_app = typer.Typer(help="Tokens: who may publish.", no_args_is_help=True)
site_app.add_typer(token_app, name="token")


@site_app.callback()
def site_command(
    context: typer.Context,
    data: _Data = None,
    database: _Database = None,
    files: _Files = None,
    config: _Config = None,
    port: Annotated[int | None, option("Port (8321).", min=0, max=65535, panel=_SITE)] = None,
    host: Annotated[str | None, option("Address to listen at (127.0.0.1: this machine alone).", panel=_SITE)] = None,
    results: Annotated[
        Path | None, option("Results to pick up (results, if for this machine alone); none for none.", panel=_SITE)
    ] = None,
    public: Annotated[
        bool | None, option("For everybody: refuses to start with unsafe settings.", "--public", panel=_SITE)
    ] = None,
    base_url: Annotated[str | None, option("The address that people type, https://…", panel=_SITE)] = None,
    secret_file: Annotated[Path | None, option("File with the secret that signs cookies.", panel=_SITE)] = None,
    registration: Annotated[str | None, option("closed, or open: people make accounts.", panel=_SITE)] = None,
    moderation: Annotated[str | None, option("open, or queue: a moderator looks first.", panel=_SITE)] = None,
    publish_per_hour: Annotated[int | None, option("Limit for each account and address; 0: none.", panel=_SITE)] = None,
    requests_per_minute: Annotated[int | None, option("Limit for each address; 0: none.", panel=_SITE)] = None,
    comparisons_per_minute: Annotated[int | None, option("Limit for each address; 0: none.", panel=_SITE)] = None,
    proxy: Annotated[
        list[str] | None, option("Address or network of a proxy in front; repeatable.", "--proxy", panel=_SITE)
    ] = None,
    title: Annotated[str | None, option("The site's name.", panel=_SITE)] = None,
) -> None:
    """Keep, browse, compare and publish runs: starts the site. The commands below operate it."""
    given = {k: v for k, v in locals().items() if k not in ("context", "proxy")} | {"proxies": proxy or None}
    context.obj = given
    if context.invoked_subcommand is None:
        from flatout.cli import command, hosting

        raise typer.Exit(command.guarded(lambda: hosting.site(given)))


def _of_site(context: typer.Context, **typed: Any) -> dict[str, Any]:
    """The settings for a command of the site: its own before those typed after `flatout site`."""
    return {**(context.obj or {}), **{name: value for name, value in typed.items() if value is not None}}


@token_app.command("add")
def token_add_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The account's name; it is made if it is missing.")],
    scopes: Annotated[str, option("publish, or publish,moderate.")] = "publish",
    label: Annotated[str, option("What the token is for.")] = "",
    days: Annotated[int | None, option("Ends after so many days (default: never).", min=1, max=36500)] = None,
    data: _Data = None,
    database: _Database = None,
    files: _Files = None,
    config: _Config = None,
) -> None:
    """Make a token for an account and print it, this once."""
    from flatout.cli import command, hosting

    given = _of_site(context, data=data, database=database, files=files, config=config)
    raise typer.Exit(command.guarded(lambda: hosting.token_add(given, name, scopes, label, days)))


@token_app.command("list")
def token_list_command(
    context: typer.Context,
    json_output: Annotated[bool, option("As JSON.", "--json")] = False,
    data: _Data = None,
    database: _Database = None,
    files: _Files = None,
    config: _Config = None,
) -> None:
    """List all tokens: number, name, how it begins, what it may, when it was used."""
    from flatout.cli import command, hosting

    given = _of_site(context, data=data, database=database, files=files, config=config)
    raise typer.Exit(command.guarded(lambda: hosting.token_list(given, json_output)))


@token_app.command("revoke")
def token_revoke_command(
    context: typer.Context,
    number: Annotated[int, typer.Argument(help="The token's number, as token list has it.", metavar="ID")],
    data: _Data = None,
    database: _Database = None,
    files: _Files = None,
    config: _Config = None,
) -> None:
    """End a token at once."""
    from flatout.cli import command, hosting

    given = _of_site(context, data=data, database=database, files=files, config=config)
    raise typer.Exit(command.guarded(lambda: hosting.token_revoke(given, number)))


@site_app.command("backup")
def backup_command(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Archive to write.")],
    data: _Data = None,
    database: _Database = None,
    files: _Files = None,
    config: _Config = None,
) -> None:
    """Write database and files into one archive; the site may go on running."""
    from flatout.cli import command, hosting

    given = _of_site(context, data=data, database=database, files=files, config=config)
    raise typer.Exit(command.guarded(lambda: hosting.backup(given, file)))


@site_app.command("restore")
def restore_command(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Archive that backup wrote.")],
    data: _Data = None,
    database: _Database = None,
    files: _Files = None,
    config: _Config = None,
) -> None:
    """Fill an empty site from an archive, on SQLite or PostgreSQL."""
    from flatout.cli import command, hosting

    given = _of_site(context, data=data, database=database, files=files, config=config)
    raise typer.Exit(command.guarded(lambda: hosting.restore(given, file)))


@site_app.command("migrate")
def migrate_command(
    context: typer.Context,
    data: _Data = None,
    database: _Database = None,
    files: _Files = None,
    config: _Config = None,
) -> None:
    """Bring the database up to this flatout (the site does so itself as it starts)."""
    from flatout.cli import command, hosting

    given = _of_site(context, data=data, database=database, files=files, config=config)
    raise typer.Exit(command.guarded(lambda: hosting.migrate(given)))
