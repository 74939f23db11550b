"""A tenant in embedded stores under one folder: rows in, backfills, what the planes hold. Also a script to be killed.

As a script: `python tenant.py FOLDER AT` fills one plane of FOLDER and kills itself at the n-th step `plane:step:n`, or
at `vector:embed:n` together with the worker that embeds, after the n-th call of the model.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import ray
from counting import Counted

from pipelines.backfill import BackfillSummary, Progress, run_backfill
from pipelines.lanes import Lane
from recall.keys import store_key
from recall.planes.opening import open_rows, plane_context
from recall.records import PLANES, seen_by
from recall.registry import Registry
from recall.rows import Ref, Row, Tombstone
from recall.settings import Settings

ENTITIES = {
    "entities": {
        "note": {
            "columns": {
                "title": "string",
                "year": {"type": "int", "filterable": True},
                "site": "string",
            },
            "search": {"fields": ["title"]},
            "embed": {"fields": ["title"]},
            "edges": [{"field": "site", "rel": "AT", "target": "site"}],
        },
        "site": {"columns": {"name": "string"}, "search": {"fields": ["name"]}},
    }
}
# Parts of few rows, so that a small tenant takes several steps in every stage.
SIZES = {"rows_per_part": 40, "load_rows": 20, "write_retries": 8}


@dataclass(frozen=True)
class Tenant:
    folder: Path
    rows_per_part: int = SIZES["rows_per_part"]
    logical_cpus: int = 4
    name: str = "acme"

    @cached_property
    def settings(self) -> Settings:
        sizes = SIZES | {"rows_per_part": self.rows_per_part, "logical_cpus": self.logical_cpus}
        return Settings.model_validate(
            {"data_dir": str(self.folder), "embedder": {"kind": "hash", "dim": 16}, "pipeline": sizes}
        )

    @cached_property
    def registry(self) -> Registry:
        return Registry.parse(ENTITIES)

    @property
    def model(self) -> Counted:
        return Counted(self.folder / "embedded.log")

    def put(self, *rows: Row) -> None:
        store = open_rows(self.settings, plane_context(self.settings, self.registry))
        store.prepare()
        report = store.upsert(self.name, rows)
        assert not report.failures
        asyncio.run(store.close())

    def bury(self, *refs: Ref, version: int = 9) -> None:
        store = open_rows(self.settings, plane_context(self.settings, self.registry))
        store.delete(self.name, [Tombstone(ref, version) for ref in refs])
        asyncio.run(store.close())

    def backfill(self, planes: Sequence[str] = PLANES, **options: object) -> BackfillSummary:
        options.setdefault("open_model", self.model)
        return run_backfill(self.settings, self.registry, self.name, planes=planes, **options)

    def lane(self, plane: str) -> Lane:
        return Lane(plane, self.name, self.settings, self.registry, self.model)

    def contents(self) -> dict[str, tuple[dict[str, int], dict[str, str]]]:
        return {plane: self.contents_of(plane) for plane in PLANES}

    def contents_of(self, plane: str) -> tuple[dict[str, int], dict[str, str]]:
        """Live rows of a plane by entity, and the stored hash of every row of the source."""
        lane = self.lane(plane)
        with lane.rows() as rows, lane.store() as store:
            keys = [
                store_key(self.name, row.ref.entity, row.ref.id)
                for name, entity in self.registry.entities.items()
                if seen_by(plane, entity)
                for page in rows.pages(self.name, name, 1000)
                for row in rows.read_page(self.name, name, page)
            ]
            return asyncio.run(store.count(self.name)), store.hashes(self.name, keys)

    def start_and_kill(self, at: str) -> None:
        """A backfill of one plane in a process of its own that dies with SIGKILL at `at`."""
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, __file__, str(self.folder), at]
        done = subprocess.run(
            command,
            env={**os.environ, "RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def note(row_id: int | str, title: str | None = None, version: int = 1, **values: object) -> Row:
    text = f"note {row_id}" if title is None else title
    return Row(
        Ref("note", str(row_id)), version, {"id": str(row_id), "title": text, "year": None, "site": None, **values}
    )


def site(row_id: str, version: int = 1) -> Row:
    return Row(Ref("site", row_id), version, {"id": row_id, "name": f"site {row_id}"})


def main(folder: str, at: str) -> None:
    tenant = Tenant(Path(folder))
    seen: dict[str, int] = {}

    def killer(step: Progress) -> None:
        name = f"{step.plane}:{step.step}"
        seen[name] = seen.get(name, 0) + 1
        if f"{name}:{seen[name]}" == at:
            os.kill(os.getpid(), signal.SIGKILL)

    plane, step, call = at.split(":")
    model = tenant.model
    if step == "embed":
        model = Counted(model.log, kill_at=int(call), driver=os.getpid())
    print(tenant.backfill([plane], on_progress=killer, open_model=model).line())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
