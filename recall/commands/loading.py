"""`recall import` and `recall backfill`: rows into the source of truth, and from there into the planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from recall.commands.invocation import PARTIAL_FAILURE, USER_ERROR, Invocation, Tenant, command

if TYPE_CHECKING:
    from pipelines.backfill import BackfillSummary
    from pipelines.backfill import Progress as BackfillProgress
    from pipelines.importing import Imported, ImportSummary


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
    """Read files into the source of truth: Parquet, JSON lines, CSV, or what the entity file's `sources` name."""
    imported = load_rows(invocation, paths or (), tenant, dead_letters)
    filled = fill_planes(invocation, imported.tenants) if then_backfill else []
    answer: dict[str, Any] = {"import": asdict(imported), "backfill": [plain(summary) for summary in filled]}
    invocation.show(answer, Text(imported.line()), *(Text(summary.line()) for summary in filled))
    _exit(imported.failed, filled)


def backfill(
    invocation: Invocation,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only this tenant. Default: all.")] = None,
    plane: Annotated[
        list[str] | None, typer.Option("--plane", help="Only this plane: vector, search or graph; repeat for more.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many rows per entity.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")] = False,
) -> None:
    """Fill the planes from the source of truth; rows that did not change are left alone."""
    tenants = [tenant] if tenant else _all_tenants(invocation)
    filled = fill_planes(invocation, tenants, plane, limit=limit, dry_run=dry_run)
    said = [Text(summary.line()) for summary in filled]
    if not filled:
        said = [Text("nothing to do: no tenant has rows; start with `recall import`")]
    invocation.show({"backfill": [plain(summary) for summary in filled]}, *said)
    _exit(0, filled)


def load_rows(
    invocation: Invocation, paths: Sequence[str], tenant: str, dead_letters: Path | None = None
) -> ImportSummary:
    """Run one import with progress on stderr."""
    from pipelines.importing import run_import

    with progress(invocation, "{task.completed:,.0f} rows") as bar:
        task = bar.add_task("import", total=None)

        def advanced(step: Imported) -> None:
            bar.update(task, completed=step.rows, description=Path(step.file).name)

        settings, registry = invocation.settings, invocation.registry
        return run_import(settings, registry, tenant, paths, dead_letters=dead_letters, on_progress=advanced)


def fill_planes(
    invocation: Invocation,
    tenants: Sequence[str],
    planes: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    dry_run: bool = False,
) -> list[BackfillSummary]:
    """Run one backfill a tenant, all on the same Ray, with progress on stderr."""
    from pipelines.backfill import run_backfill
    from pipelines.context import ray_session
    from recall.records import PLANES

    settings, registry = invocation.settings, invocation.registry
    done: list[BackfillSummary] = []
    with ray_session(settings) if len(tenants) > 1 else nullcontext(), progress(invocation) as bar:
        for tenant in tenants:
            advanced = _Advance(bar, tenant)
            summary = run_backfill(
                settings,
                registry,
                tenant,
                planes=planes or PLANES,
                limit=limit,
                dry_run=dry_run,
                on_progress=advanced,
            )
            done.append(summary)
    return done


class _Advance:
    """Progress of one backfill: a bar per plane and step."""

    def __init__(self, bar: Progress, tenant: str) -> None:
        self._bar = bar
        self._tenant = tenant
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __call__(self, step: BackfillProgress) -> None:
        key = (step.plane, step.step)
        if key not in self._tasks:
            self._tasks[key] = self._bar.add_task(f"{self._tenant}: {step.step} {step.plane}", total=step.total)
        self._bar.update(self._tasks[key], completed=step.done, total=step.total)


@contextmanager
def progress(invocation: Invocation, counted: str | None = None) -> Iterator[Progress]:
    """Bars on stderr while a job runs; none when JSON was asked for or nobody watches."""
    columns = [TextColumn(counted)] if counted else [BarColumn(), MofNCompleteColumn()]
    quiet = invocation.as_json or not invocation.err.is_terminal
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=invocation.err,
        transient=True,
        disable=quiet,
    ) as bar:
        yield bar


def _all_tenants(invocation: Invocation) -> list[str]:
    import asyncio

    from recall.planes import open_rows, plane_context

    rows = open_rows(invocation.settings, plane_context(invocation.settings, invocation.registry))
    try:
        rows.prepare()
        return sorted(rows.tenants())
    finally:
        asyncio.run(rows.close())


def plain(summary: BackfillSummary) -> dict[str, Any]:
    """JSON-ready; single failures are in the dead letters, here only their number."""
    plain = {**asdict(summary), "failed": summary.failed, "errors": list(summary.errors)}
    for lane in plain["lanes"]:
        for part in ("staged", "loaded"):
            lane[part]["failures"] = len(lane[part]["failures"])
    return plain


def _exit(failed: int, filled: Sequence[BackfillSummary]) -> None:
    """Status 1 when a plane could not be filled, else 3 when rows failed."""
    if any(summary.errors for summary in filled):
        raise typer.Exit(USER_ERROR)
    if failed or any(summary.failed for summary in filled):
        raise typer.Exit(PARTIAL_FAILURE)
