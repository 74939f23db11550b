"""`recall doctor`: does everything that an import, a backfill and a question need work here, and if not, what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from recall.commands.invocation import USER_ERROR, Invocation, command
from recall.errors import ConfigError, RecallError

if TYPE_CHECKING:
    from recall.commands.checks import Finding

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


def register(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(
    invocation: Invocation,
    replay_graph: Annotated[
        bool,
        typer.Option("--replay-graph", help="Ask NebulaGraph every statement of its adapter, in scratch spaces."),
    ] = False,
) -> None:
    """Check settings, entity file, disk, stores, model, indexes, tokens and versions; say what to do about each."""
    findings = list(_replayed(invocation) if replay_graph else _findings(invocation))
    failed = sum(finding.status == "failed" for finding in findings)
    answer = {"findings": [asdict(finding) for finding in findings], "failed": failed}
    invocation.show(answer, *_pictures(findings))
    if failed:
        raise typer.Exit(USER_ERROR)


def _findings(invocation: Invocation) -> Iterator[Finding]:
    from recall.commands import checks

    yield from checks.check_packages()
    try:
        settings = invocation.settings
        yield checks.Finding("settings", "ok", invocation.config or "recall.yaml, environment and defaults")
    except RecallError as error:
        yield checks.Finding("settings", "failed", error.message, "fix the file; configs/local.yaml lists every key")
        return
    yield from checks.check_data_dir(settings)
    yield from checks.check_tokens(settings)
    yield from checks.check_machine(settings)
    yield from checks.check_model(settings)
    try:
        registry = invocation.registry
    except RecallError as error:
        yield checks.Finding(
            "entity file", "failed", error.message, "fix the file; `recall init` writes one that works"
        )
        return
    declared = [name for name, entity in registry.entities.items() if entity.spec.embed or entity.spec.search]
    yield checks.Finding("entity file", "ok", f"{settings.entities or 'none'}: {', '.join(declared)}")
    yield from asyncio.run(_stores(invocation))


def _replayed(invocation: Invocation) -> Iterator[Finding]:
    """One finding for the whole file, or one for each statement that the cluster answers otherwise."""
    from recall.commands.checks import Finding
    from recall.planes.nebula_replay import replay
    from recall.settings import NebulaSettings

    graph = invocation.settings.planes.graph
    if not isinstance(graph, NebulaSettings):
        raise ConfigError(f"--replay-graph needs planes.graph.kind nebula; the settings say {graph.kind}")
    try:
        report = replay(graph)
    except RecallError as error:
        yield Finding("graph statements", "failed", error.message, "make the cluster answer, then repeat")
        return
    if not report.differences:
        yield Finding("graph statements", "ok", f"{report.asked} asked of {report.address}, all answered as recorded")
    for one in report.differences:
        detail = f"{one.name}: expected {one.expected}, got {one.got}: {one.statement}"
        yield Finding("graph statements", "failed", detail, "the adapter does not fit this version; report it")


async def _stores(invocation: Invocation) -> list[Finding]:
    from recall.commands import checks
    from recall.planes import open_planes, plane_context

    settings, registry = invocation.settings, invocation.registry
    try:
        planes = open_planes(settings, plane_context(settings, registry))
    except (RecallError, ImportError) as error:
        return [checks.Finding("stores", "failed", str(error), "pip install 'ray-recall[local]', or see `planes`")]
    try:
        found = await checks.check_stores(planes, settings)
        return found + await checks.check_indexes(planes, settings, registry)
    finally:
        await planes.close()


def _pictures(findings: list[Finding]) -> Iterator[RenderableType]:
    for finding in findings:
        mark, colour = _MARKS[finding.status]
        line = Text(f"{mark} ", style=colour).append(f"{finding.check}: ", style="bold default")
        yield line.append(finding.detail, style="not bold default")
        if finding.advice:
            yield Text(f"    → {finding.advice}", style=colour)
    failed = sum(finding.status == "failed" for finding in findings)
    yield Text(f"{failed} of {len(findings)} checks failed" if failed else "everything works", style="bold")
