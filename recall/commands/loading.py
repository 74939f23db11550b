"""`recall import` and `recall backfill`."""

import typer


def register(app: typer.Typer) -> None:
    """Nothing yet."""
