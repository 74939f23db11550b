"""`recall tool <name>`: every tool of the table as a command, its options made from the tool's request model."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperGroup
from typer.main import get_group

from recall.commands.answers import Asker, Scope, TokenEnv, Url, call, json_option
from recall.commands.invocation import Invocation, Tenant, command
from recall.commands.rendering import pictures
from recall.errors import InvalidRequest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from recall.tools import Tool


# Keeps a request's field apart from the option of the same name that every command takes.
_OWN = "field_"


class _Tools(TyperGroup):
    """A group whose commands come from the tool table, which is read only when one of them is needed."""

    @cached_property
    def _table(self) -> Mapping[str, Any]:
        from recall.tools import TOOLS

        made = typer.Typer()
        for tool in TOOLS.values():
            _register_tool(made, tool)
        return get_group(made).commands

    def list_commands(self, ctx: object) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        return self._table.get(cmd_name)


def register(app: typer.Typer) -> None:
    app.add_typer(typer.Typer(cls=_Tools, no_args_is_help=True), name="tool", help="Call one tool by its name.")


def _asker(tenant: Tenant = "default", scope: Scope = None, url: Url = None, token_env: TokenEnv = None) -> Asker:
    """Carries the signature of the options that say who asks."""
    return Asker(tenant, scope, url, token_env)


ASKER = inspect.signature(_asker, eval_str=True).parameters


def _register_tool(app: typer.Typer, tool: Tool) -> None:
    fields = tool.request.model_fields

    def run(invocation: Invocation, body: str | None, **values: Any) -> None:
        asker = _asker(**{name: values.pop(name) for name in ASKER})
        given = json_option("the request", body) if body else {}
        if not isinstance(given, dict):
            raise InvalidRequest(f"the request must be a JSON object, got {type(given).__name__}")
        for name, field in fields.items():
            value = values[_OWN + name]
            if value is not None and value != []:
                given[name] = json_option(_flag(name), value) if _takes_json(field) else value
        answer = call(invocation, tool.name, given, asker)
        invocation.show(answer, *pictures(answer))

    about = "The request as a JSON object; options win over it."
    whole = inspect.Parameter(
        "body",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, typer.Argument(help=about)],
    )
    options = [_option(name, field) for name, field in fields.items()]
    command(app, tool.name, parameters=[whole, *options, *ASKER.values()], help=tool.description)(run)


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    kind: Any = str if _takes_json(field) else _plain_type(field.annotation)
    about = field.description or ""
    if _takes_json(field):
        about = f"{about} JSON.".strip()
    if not field.is_required() and field.default is not None:
        about = f"{about} (default {field.default})"
    option = typer.Option(_flag(name), help=about, show_default=False)
    return inspect.Parameter(
        _OWN + name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _flag(name: str) -> str:
    # `--entities` names the entity file, here as everywhere; one entity at a time is `--entity`, as in `recall query`.
    return "--entity" if name == "entities" else f"--{name.replace('_', '-')}"


def _plain_type(annotation: Any) -> Any:
    """The type of an option: bool, int, float or str; a list of one of them repeats."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain_type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        inner = [item for item in get_args(annotation) if item is not type(None)]
        return _plain_type(inner[0]) if len(inner) == 1 else dict
    if origin is Literal:
        return str
    if origin is list:
        return list[str]
    return annotation if annotation in (bool, int, float, str) else dict


def _takes_json(field: FieldInfo) -> bool:
    return _plain_type(field.annotation) is dict
