"""The commands of `flatout`, in the order in which its help names them: one file a group, one line a command."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout import __version__
from flatout.cli import calibrate, publish, results, run, site

app = typer.Typer(
    name="flatout",
    help="The speed test for LLM servers: how fast a server reads prompts and writes answers, at every context length "
    "and number of simultaneous requests, and where it runs out of room.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"flatout {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command()(run.run)
app.command()(run.demo)
app.command()(results.show)
app.command()(results.report)
app.command()(results.compare)
app.command()(results.lint)
app.command()(results.limits)
app.command()(calibrate.calibrate)
app.command()(publish.publish)
app.command()(run.suites)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)(
    calibrate.rig
)
app.add_typer(site.app, name="site")


def main() -> None:
    """Entry point."""
    app()
