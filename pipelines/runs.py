"""Run folders: `{runs}/{tenant}/{run}/{stage}/` with a manifest, parts and the marks of what is done."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from pipelines.lanes import STAGE_NAMES, Lane
from pipelines.sinks import PART
from pipelines.storage import Folder
from recall.keys import compact_json

MANIFEST = "manifest.json"
STAGED = "_SUCCESS"
LOADED = "_LOADED"


def new_run() -> str:
    """A run id; ids sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one run."""

    run: str
    folder: Folder

    @classmethod
    def of(cls, lane: Lane, run: str) -> Stage:
        return cls(run, Folder.of_runs(lane.settings) / lane.tenant / run / STAGE_NAMES[lane.plane])

    def begin(self, lane: Lane) -> None:
        """Write the manifest: which plane and recipe the parts are for."""
        manifest = {
            "plane": lane.plane,
            "tenant": lane.tenant,
            "recipe": lane.recipe,
            "model": str(lane.context.model) if lane.plane == "vector" else None,
        }
        self.folder.put(MANIFEST, compact_json(manifest))

    def mark(self, name: str, counts: dict[str, int]) -> None:
        self.folder.put(name, compact_json(counts))

    def parts(self) -> list[str]:
        return [name for name in self.folder.names() if name.startswith(PART)]

    def discard(self) -> None:
        self.folder.remove()


def earlier_stages(lane: Lane, *, loaded: bool) -> list[Stage]:
    """Stages of earlier runs with this lane's recipe, oldest first: those not yet loaded, or all when `loaded`."""
    found: list[Stage] = []
    for run in (Folder.of_runs(lane.settings) / lane.tenant).names():
        stage = Stage.of(lane, run)
        names = stage.folder.names()
        if MANIFEST not in names or (LOADED in names and not loaded):
            continue
        if json.loads(stage.folder.read(MANIFEST)).get("recipe") == lane.recipe:
            found.append(stage)
    return found
