"""`recall query`: a question with a budget, answered by a context pack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from recall.commands.answers import Asker, Scope, TokenEnv, Url, call, json_option
from recall.commands.invocation import Invocation, Tenant, command
from recall.commands.rendering import pack_pictures
from recall.errors import InvalidRequest

DEFAULT_BUDGET = 2000


def register(app: typer.Typer) -> None:
    command(app, "query")(query)


def query(  # noqa: PLR0913 - one argument an option
    invocation: Invocation,
    text: Annotated[str, typer.Argument(help="The question.")],
    tenant: Tenant = "default",
    budget: Annotated[int, typer.Option("--budget", "-b", help="Token budget of the pack.")] = DEFAULT_BUDGET,
    entity: Annotated[
        list[str] | None, typer.Option("--entity", "-e", help="Recall from this entity; repeat for more. Default: all.")
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Candidates per channel and entity.")] = None,
    hops: Annotated[int | None, typer.Option("--hops", help="Depth of the walk; 0 leaves the graph out.")] = None,
    filters: Annotated[str | None, typer.Option("--filters", help='JSON, e.g. {"lang": "en"}.')] = None,
    channels: Annotated[
        str | None, typer.Option("--channels", help="Weights, e.g. vector=1,search=0.5,graph=0.")
    ] = None,
    fusion: Annotated[str | None, typer.Option("--fusion", help="rrf or convex.")] = None,
    packer: Annotated[str | None, typer.Option("--packer", help="prefix or fill.")] = None,
    altitude: Annotated[str | None, typer.Option("--altitude", help="auto, entity, scope, tenant or mixed.")] = None,
    timeout_ms: Annotated[int | None, typer.Option("--timeout-ms", help="Deadline of the request.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show ranks per channel and paths.")] = False,
    scope: Scope = None,
    url: Url = None,
    token_env: TokenEnv = None,
) -> None:
    """Ask a question; get the rows that answer it, best first, within a token budget."""
    asked = {
        "query": text,
        "budget": budget,
        "entities": entity or all_entities(invocation),
        "k": k,
        "hops": hops,
        "filters": json_option("--filters", filters),
        "channels": weights(channels),
        "fusion": fusion,
        "packer": packer,
        "altitude": altitude,
        "timeout_ms": timeout_ms,
        "explain": explain or None,
    }
    body = {name: value for name, value in asked.items() if value is not None}
    pack = call(invocation, "recall", body, Asker(tenant, scope, url, token_env))
    invocation.show(pack, *pack_pictures(pack, budget))


def all_entities(invocation: Invocation) -> Sequence[str]:
    """Every entity that a query can find by itself: embedded or searchable, and no bridge.

    The built-in entities count only where the entity file declares none.
    """
    from recall.registry import Registry

    registry = invocation.registry
    found = [
        name
        for name, entity in registry.entities.items()
        if (entity.spec.embed or entity.spec.search) and not entity.spec.bridge
    ]
    builtin = set(Registry({}).entities)
    return [name for name in found if name not in builtin] or found


def weights(text: str | None) -> dict[str, Any] | None:
    """`vector=1,search=0.5` → a mapping; None when the option was not given."""
    if text is None:
        return None
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidRequest(f"--channels takes name=weight pairs such as vector=1,search=0.5; got {text!r}")
    return found
