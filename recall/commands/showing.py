"""`recall show`: what the stores hold: rows per plane and entity, tenants, index versions, sizes on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from recall.commands.invocation import Invocation, command
from recall.commands.rendering import table

if TYPE_CHECKING:
    from recall.planes import Planes

PLANES = ("rows", "vector", "search", "graph")


def register(app: typer.Typer) -> None:
    command(app, "show")(show)


def show(
    invocation: Invocation,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only this tenant. Default: all.")] = None,
) -> None:
    """Show what the stores hold: rows per plane and entity, tenants, index versions, sizes on disk."""
    contents = asyncio.run(_contents(invocation, tenant))
    invocation.show(contents, *_pictures(contents))


async def _contents(invocation: Invocation, only: str | None) -> dict[str, Any]:
    from recall.keys import check_tenant
    from recall.planes import open_planes, plane_context

    settings, registry = invocation.settings, invocation.registry
    context = plane_context(settings, registry)
    planes = open_planes(settings, context)
    try:
        tenants = [check_tenant(only)] if only else sorted(planes.rows.tenants())
        counts = {tenant: await _counts(planes, tenant) for tenant in tenants}
    finally:
        await planes.close()
    return {
        "data_dir": settings.data_dir,
        "entities": settings.entities,
        "model": str(context.model),
        "versions": {
            "vector": registry.vector_version(context.model.name),
            "search": registry.search_version(),
            "graph": registry.graph_version(),
        },
        "tenants": counts,
        "bytes": {
            plane: disk_bytes(settings.data_path(chosen.path))
            for plane in PLANES
            if (chosen := getattr(settings.planes, plane)).kind != "memory"
        },
    }


async def _counts(planes: Planes, tenant: str) -> dict[str, dict[str, int]]:
    """Live rows by entity of each plane; a plane that cannot say is left out by its error."""
    from recall.errors import IndexMissing

    counts: dict[str, dict[str, int]] = {}
    for plane in PLANES:
        try:
            counts[plane] = dict(sorted((await getattr(planes, plane).count(tenant, timeout_s=30.0)).items()))
        except IndexMissing:
            counts[plane] = {}
    return counts


def disk_bytes(path: Path) -> int:
    """Bytes of a file with what SQLite keeps beside it, or of everything under a folder."""
    if path.is_dir():
        return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())
    return sum(item.stat().st_size for item in path.parent.glob(f"{path.name}*") if item.is_file())


def human_bytes(size: float) -> str:
    """1536 → `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _pictures(contents: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield Text(f"{contents['data_dir']}, model {contents['model']}")
    if not contents["tenants"]:
        yield Text("no tenant yet: `recall import <files> --backfill` makes one", style="bold")
    for tenant, planes in contents["tenants"].items():
        made = table("entity", *PLANES, title=f"tenant {tenant}", right=PLANES)
        for entity in sorted({name for counts in planes.values() for name in counts}):
            made.add_row(entity, *(f"{counts[entity]:,}" if entity in counts else "–" for counts in planes.values()))
        yield made
    made = table("plane", "index version", "on disk", right=("on disk",))
    for plane, size in contents["bytes"].items():
        made.add_row(plane, contents["versions"].get(plane, "–"), human_bytes(size))
    yield made
