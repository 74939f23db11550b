"""`recall init`: files to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from recall.commands.invocation import Invocation, command
from recall.errors import ConfigError

FILES = ("recall.yaml", "entities.yaml")


def register(app: typer.Typer) -> None:
    command(app, "init")(init)


def init(
    invocation: Invocation,
    folder: Annotated[Path, typer.Argument(help="Where to write them.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Write a commented recall.yaml and entities.yaml to start from."""
    starter = files("recall.commands") / "starter"
    targets = [folder / name for name in FILES]
    there = [str(target) for target in targets if target.exists()]
    if there and not force:
        raise ConfigError(f"{', '.join(there)} exists already; --force overwrites")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target in targets:
            target.write_text((starter / target.name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from None
    said = [Text(f"wrote {target}") for target in targets]
    advice = Text("next: describe your tables in entities.yaml, then `recall import <files> --backfill`")
    invocation.show({"written": [str(target) for target in targets]}, *said, advice)
