"""The ``fozo`` command: one file a command. Exit code 2 with one sentence for what is wrong, 130 for Ctrl-C."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fozo.cli import adapt, bench, calibrate, corrupt, data, demo, export, methods, quantise, report
from fozo.cli.options import as_command
from fozo.errors import FozoError
from fozo.types import installed_version

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _file in (demo, bench, report, calibrate, quantise, adapt, methods, corrupt, export):
    app.command()(as_command(vars(_file)[_file.__name__.rpartition(".")[2]]))  # the function is called like its file
sets = typer.Typer(help="Look at image sets.", no_args_is_help=True)
sets.command()(as_command(data.check))
app.add_typer(sets, name="data")


@app.callback(invoke_without_command=True)
def fozo(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Keep a deployed Vision Transformer accurate while its data drifts, with forward passes only."""
    if version:
        typer.echo(installed_version())
        raise typer.Exit


def main() -> None:
    """Run the command line; a :class:`FozoError` becomes one line on stderr and exit code 2."""
    try:
        app()
    except FozoError as error:
        print(f"fozo: {error}", file=sys.stderr)
        sys.exit(2)
