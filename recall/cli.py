"""The command line: `recall <command>`. Gathers the commands; each imports what it needs only when it runs.

Exit status: 0 done, 1 an error (one line on stderr), 2 wrong usage, 3 done but some rows failed.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from recall.commands import asking, demo, digests, doctor, loading, serving, showing, starting, toolbox
from recall.commands.invocation import AsJson, Config, DataDir, Debug, Entities, Invocation
from recall.remarks import ignore_fork_remark

app = typer.Typer(
    name="recall",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(version("ray-recall"))
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    config: Config = None,
    data_dir: DataDir = None,
    entities: Entities = None,
    as_json: AsJson = False,
    debug: Debug = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Budget-fitted context packs from vectors, full text and a graph."""
    context.obj = Invocation(config, data_dir, entities, as_json, debug)


for module in (starting, loading, digests, asking, toolbox, showing, doctor, serving, demo):
    module.register(app)


def main() -> None:
    """Entry point of the `recall` script."""
    ignore_fork_remark()
    app()
