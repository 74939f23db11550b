"""`recall demo`."""

from __future__ import annotations

import typer

from recall.commands.invocation import Invocation, command


def register(app: typer.Typer) -> None:
    command(app, "demo")(demo)


def demo(invocation: Invocation) -> None:
    """Fill a small tenant, serve it, ask it."""
