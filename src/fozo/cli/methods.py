"""``fozo methods``: what there is to choose from."""

from __future__ import annotations


def methods() -> None:
    """List the adaptation methods."""
    from rich.console import Console
    from rich.table import Table

    from fozo.methods.registry import list_methods

    console = Console()
    table = Table("method", "passes", "adapts", "needs", "paper")
    if not console.is_terminal:  # one line a method, whatever width the pipe claims to have
        console, table.box = Console(width=200), None
    for info in list_methods().values():
        table.add_row(info.name, info.passes, info.adapts, ", ".join(sorted(info.needs)) or "-", info.paper)
    console.print(table)
