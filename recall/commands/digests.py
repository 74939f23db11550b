"""`recall distill`, and the digest tools as commands of their own: `recall map`, `recall digest`, `recall resolve`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from recall.commands.answers import Asker, Scope, TokenEnv, Url, call
from recall.commands.invocation import PARTIAL_FAILURE, USER_ERROR, Invocation, Tenant, command
from recall.commands.loading import plain, progress
from recall.commands.rendering import pictures

if TYPE_CHECKING:
    from pipelines.distill_summary import DistillSummary
    from pipelines.distill_summary import Progress as DistillProgress


def register(app: typer.Typer) -> None:
    command(app, "distill")(distill)
    command(app, "map")(map_digests)
    command(app, "digest")(digest)
    command(app, "resolve")(resolve)


def distill(
    invocation: Invocation,
    tenant: Tenant = "default",
    full: Annotated[bool, typer.Option("--full", help="Make every summary anew.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")] = False,
) -> None:
    """Summarise rows, scopes and the tenant; only what changed is asked of the model."""
    summary = _run(invocation, tenant, full=full, dry_run=dry_run)
    answer: dict[str, Any] = {**asdict(summary), "complete": summary.complete}
    answer["backfill"] = plain(summary.backfill) if summary.backfill else None
    invocation.show({"distill": answer}, Text(summary.line()))
    if summary.backfill and summary.backfill.errors:
        raise typer.Exit(USER_ERROR)
    if summary.failed or (summary.backfill and summary.backfill.failed):
        raise typer.Exit(PARTIAL_FAILURE)


def _run(invocation: Invocation, tenant: str, *, full: bool, dry_run: bool) -> DistillSummary:
    from pipelines.distill import run_distill

    with progress(invocation) as bar:
        tasks: dict[str, Any] = {}

        def advanced(step: DistillProgress) -> None:
            if step.step not in tasks:
                tasks[step.step] = bar.add_task(f"{tenant}: {step.step}", total=step.total)
            bar.update(tasks[step.step], completed=step.done, total=step.total)

        settings, registry = invocation.settings, invocation.registry
        return run_distill(settings, registry, tenant, full=full, dry_run=dry_run, on_progress=advanced)


def map_digests(  # noqa: PLR0913 - the options of the command
    invocation: Invocation,
    of: Annotated[str | None, typer.Argument(help="A scope value, name:value or node id. Default: the root.")] = None,
    known: Annotated[list[str] | None, typer.Option("--known", help="content_hash that you hold; repeat.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most lines.")] = 1000,
    tenant: Tenant = "default",
    scope: Scope = None,
    url: Url = None,
    token_env: TokenEnv = None,
) -> None:
    """List the tree of summaries, one line a node."""
    body = {"scope": of, "known_hashes": known or [], "limit": limit}
    _show(invocation, "map", body, Asker(tenant, scope, url, token_env))


def digest(  # noqa: PLR0913 - the options of the command
    invocation: Invocation,
    node: Annotated[str, typer.Argument(help="Id of the node, as `recall map` lists it.")] = "digest:2:tenant",
    rows: Annotated[int, typer.Option("--rows", min=0, help="List so many of the rows beneath it.")] = 0,
    tenant: Tenant = "default",
    scope: Scope = None,
    url: Url = None,
    token_env: TokenEnv = None,
) -> None:
    """Show a summary with those of its children and the way up."""
    _show(invocation, "digest", {"node_id": node, "rows": rows}, Asker(tenant, scope, url, token_env))


def resolve(  # noqa: PLR0913 - the options of the command
    invocation: Invocation,
    hash_: Annotated[str, typer.Argument(metavar="HASH", help="64 hex digits, or the 16 of a sem_hash.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most nodes.")] = 20,
    tenant: Tenant = "default",
    scope: Scope = None,
    url: Url = None,
    token_env: TokenEnv = None,
) -> None:
    """Find summaries by hash: exactly by content, or near in meaning."""
    _show(invocation, "resolve", {"hash": hash_, "limit": limit}, Asker(tenant, scope, url, token_env))


def _show(invocation: Invocation, tool: str, body: dict[str, Any], asker: Asker) -> None:
    answer = call(invocation, tool, body, asker)
    invocation.show(answer, *pictures(answer))
