"""`recall import` and `recall backfill`: rows into the source of truth, and from there into the planes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recall.commands.invocation import Invocation, Tenant, command


def register(app: typer.Typer) -> None:
    command(app, "import")(import_rows)
    command(app, "backfill")(backfill)


def import_rows(
    invocation: Invocation,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Folders and files, or entity=file. Default: the entity file's `sources`."),
    ] = None,
    tenant: Tenant = "default",
    then_backfill: Annotated[bool, typer.Option("--backfill", help="Fill the planes afterwards.")] = False,
    dead_letters: Annotated[
        Path | None, typer.Option("--dead-letters", help="Where rows go that cannot be taken, with the reason.")
    ] = None,
) -> None:
    """Read files into the source of truth."""


def backfill(
    invocation: Invocation,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only this tenant. Default: all.")] = None,
    plane: Annotated[
        list[str] | None, typer.Option("--plane", help="Only this plane: vector, search or graph; repeat for more.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="At most this many rows per entity.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")] = False,
) -> None:
    """Fill the planes from the source of truth; rows that did not change are left alone."""
