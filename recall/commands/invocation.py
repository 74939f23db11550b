"""One run of a command: its settings, where its output goes, and how errors end it. Reads nothing until asked."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from recall.commands.remote import Refused
from recall.errors import ChannelError, ConfigError, RecallError

if TYPE_CHECKING:
    from recall.registry import Registry
    from recall.settings import Settings

USER_ERROR = 1
PARTIAL_FAILURE = 3
# A module of our own that is not there is a broken installation, not a missing extra.
_OWN = frozenset({"recall", "pipelines", "deployments"})

_PANEL = "Everywhere"
Config = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file (RECALL_CONFIG, ./recall.yaml).", rich_help_panel=_PANEL
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help="Where stores live (RECALL_DATA_DIR).", rich_help_panel=_PANEL),
]
Entities = Annotated[
    str | None,
    typer.Option("--entities", metavar="FILE", help="Entity file (RECALL_ENTITIES).", rich_help_panel=_PANEL),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.", rich_help_panel=_PANEL)]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.", rich_help_panel=_PANEL)]
Tenant = Annotated[str, typer.Option("--tenant", "-t", help="Whose rows.")]


@dataclass(frozen=True)
class Invocation:
    """The options that every command takes, before or after its name, and what follows from them."""

    config: str | None = None
    data_dir: str | None = None
    entities: str | None = None
    as_json: bool = False
    debug: bool = False
    out: Console = field(default_factory=Console)
    err: Console = field(default_factory=lambda: Console(stderr=True))

    @cached_property
    def settings(self) -> Settings:
        """Settings as the options, the environment and `./recall.yaml` say, in this order."""
        from recall.settings import settings_from_environment

        return settings_from_environment(config=self.config, data_dir=self.data_dir, entities=self.entities)

    @cached_property
    def registry(self) -> Registry:
        from recall.settings import load_registry

        return load_registry(self.settings)

    def show(self, value: Mapping[str, object], *pictures: RenderableType) -> None:
        """`value` as JSON when JSON was asked for, else `pictures` for a reader."""
        if self.as_json:
            typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))
            return
        for picture in pictures:
            self.out.print(picture, soft_wrap=isinstance(picture, (str, Text)))

    def note(self, text: str) -> None:
        """Progress and remarks: on stderr, so that stdout stays the answer."""
        if not self.as_json:
            self.err.print(text, style="dim", highlight=False, markup=False)

    def complain(self, error: RecallError) -> None:
        """One line on stderr: the code and the message, which says what to do."""
        code = str(error.reason) if isinstance(error, (ChannelError, Refused)) else error.code
        if self.as_json:
            typer.echo(json.dumps({"error": {"code": code, "message": error.message}}, ensure_ascii=False), err=True)
            return
        typer.echo(f"error: {code}: {' '.join(error.message.split())}", err=True)

    def merged(self, options: Mapping[str, Any]) -> Invocation:
        """With the options given after the command's name taking the place of those before it."""
        return replace(self, **{name: value for name, value in options.items() if value})


def _shared(
    config: Config = None,
    data_dir: DataDir = None,
    entities: Entities = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Carries the signature of the shared options."""


SHARED = inspect.signature(_shared, eval_str=True).parameters


def command(
    app: typer.Typer, name: str, *, parameters: list[inspect.Parameter] | None = None, help: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command: its first argument is the Invocation, the rest are its own options.

    `parameters` replaces the function's own signature, for commands made from a table.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = parameters
        if own is None:
            own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(**values: Any) -> None:
            context: typer.Context = values.pop("context")
            given = context.find_root().obj
            invocation = (given if isinstance(given, Invocation) else Invocation()).merged(
                {option: values.pop(option) for option in SHARED}
            )
            bordered(invocation, lambda: function(invocation, **values))

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        keyword = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in [*own, *SHARED.values()]]
        run.__signature__ = inspect.Signature([context, *keyword])  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in [context, *keyword]}
        app.command(name, help=help or inspect.getdoc(function))(run)
        return function

    return register


def bordered(invocation: Invocation, call: Callable[[], None]) -> None:
    """Run `call`; a RecallError or a missing client library becomes one line and exit status 1.

    With --debug the traceback comes first.
    """
    try:
        call()
    except RecallError as error:
        _end(invocation, error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OWN:
            raise
        advice = "pip install 'ray-recall[local]', or name other stores in the settings"
        _end(invocation, ConfigError(f"{error}: {advice}"))


def _end(invocation: Invocation, error: RecallError) -> NoReturn:
    if invocation.debug:
        invocation.err.print_exception()
    invocation.complain(error)
    raise typer.Exit(USER_ERROR) from None
