"""The ``fozo`` command."""

from __future__ import annotations

import sys

import typer

from fozo.errors import FozoError

app = typer.Typer(
    help="Keep a deployed Vision Transformer accurate while its data drifts, with forward passes only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """Keep a deployed Vision Transformer accurate while its data drifts, with forward passes only."""
    if version:
        from fozo import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def methods() -> None:
    """List the adaptation methods."""
    from rich.console import Console
    from rich.table import Table

    from fozo.methods.registry import methods as registered

    table = Table("method", "passes", "adapts", "gradients", "source statistics", "paper")
    for info in registered().values():
        table.add_row(
            info.name,
            info.passes,
            info.adapts,
            "yes" if info.needs_gradient else "no",
            "yes" if info.needs_source else "no",
            info.paper,
        )
    Console().print(table)


def main() -> None:
    """Run the command line; a :class:`FozoError` becomes one line on stderr and exit code 2."""
    try:
        app()
    except FozoError as error:
        print(f"fozo: {error}", file=sys.stderr)
        sys.exit(2)
