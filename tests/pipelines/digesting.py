"""A tenant that is distilled: rows in, runs without Ray or with it, the whole tree out. Also a script to be killed.

As a script: `python digesting.py FOLDER STEP N` distils FOLDER and kills itself at the n-th report of STEP.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ray

from pipelines.distill import run_distill
from pipelines.distill_summary import DistillSummary, Progress
from pipelines.flow import InlineFlow, RayFlow
from recall.model_ports import Embedder, Summarizer, Summary, SummaryTask
from recall.models.hashing import HashEmbedder
from recall.planes.opening import open_rows, plane_context
from recall.registry import Registry
from recall.rows import Ref, Row, Tombstone
from recall.settings import Settings

ENTITIES = {
    "entities": {
        "note": {
            "columns": {"text": "string", "topic": "string", "team": "string"},
            "scope": "team",
            "distill": {"fields": ["text"], "scopes": ["topic"], "budget": 16},
        },
        "letter": {
            "columns": {"text": "string"},
            "distill": {"fields": ["text"], "budget": 16},
        },
    }
}
SMALL = {"max_fan_in": 4, "input_budget": 80, "output_budget": 16, "batch": 16, "retries": 1}


class FakeSummarizer:
    """First words of every text, so that a summary depends on all its children. Each task is a line in `log`.

    A text with `poison` fails, until the file `healed` lies beside the log.
    """

    name = "fake"

    def __init__(self, log: Path) -> None:
        self._log = log

    def summarize(self, tasks: Sequence[SummaryTask]) -> list[Summary]:
        with self._log.open("ab", buffering=0) as log:
            log.write(b"".join(f"{task.level}|{'~'.join(task.texts)}".encode() + b"\n" for task in tasks))
        return [self._one(task) for task in tasks]

    def _one(self, task: SummaryTask) -> Summary:
        if any("poison" in text for text in task.texts) and not (self._log.parent / "healed").exists():
            return Summary("", error="poisoned")
        each = max(1, task.budget * 4 // len(task.texts) - 1)
        return Summary(" ".join(text[:each] for text in task.texts), tuple(range(len(task.texts))))


@dataclass(frozen=True)
class FakeModels:
    log: Path

    def __call__(self, settings: Settings) -> tuple[Embedder, Summarizer]:
        return HashEmbedder(settings.embedder.dim), FakeSummarizer(self.log)


@dataclass(frozen=True)
class Digested:
    folder: Path
    name: str = "acme"
    distill: dict[str, Any] = field(default_factory=lambda: dict(SMALL))
    rows_per_part: int = 40

    @cached_property
    def settings(self) -> Settings:
        return Settings.model_validate(
            {
                "data_dir": str(self.folder),
                "embedder": {"kind": "hash", "dim": 16},
                "pipeline": {"rows_per_part": self.rows_per_part, "write_retries": 1},
                "distill": self.distill,
            }
        )

    @cached_property
    def registry(self) -> Registry:
        return Registry.parse(ENTITIES)

    @property
    def log(self) -> Path:
        return self.folder / "asked.log"

    def store(self) -> Any:
        return open_rows(self.settings, plane_context(self.settings, self.registry))

    def put(self, *rows: Row) -> None:
        store = self.store()
        store.prepare()
        assert not store.upsert(self.name, rows).failures
        asyncio.run(store.close())

    def bury(self, *refs: Ref, version: int = 9) -> None:
        store = self.store()
        store.prepare()
        store.delete(self.name, [Tombstone(ref, version) for ref in refs])
        asyncio.run(store.close())

    def run(self, **options: Any) -> DistillSummary:
        options.setdefault("open_models", FakeModels(self.log))
        options.setdefault("load", False)
        options.setdefault("flow", InlineFlow())
        return run_distill(self.settings, self.registry, self.name, **options)

    def spread(self, **options: Any) -> DistillSummary:
        """A run of which Ray does everything, however little there is."""
        return self.run(flow=RayFlow(self.settings, few=0), **options)

    def asked(self) -> Counter[str]:
        """How often each task was sent to the model."""
        return Counter(self.log.read_text().splitlines()) if self.log.exists() else Counter()

    def nodes(self) -> dict[str, Row]:
        """Every live node."""
        store = self.store()
        rows = [
            row for page in store.pages(self.name, "digest", 1000) for row in store.read_page(self.name, "digest", page)
        ]
        asyncio.run(store.close())
        return {row.ref.id: row for row in rows if not row.deleted}

    def tree(self) -> dict[str, dict[str, Any]]:
        """Every live node but for when it was written."""
        return {
            node: {name: value for name, value in row.values.items() if name != "updated_at"} | {"scope": row.scope}
            for node, row in self.nodes().items()
        }

    def rebuilt(self, folder: Path) -> dict[str, dict[str, Any]]:
        """The tree of the same rows, made from nothing but the stored routing tree."""
        other = Digested(folder, self.name, self.distill, self.rows_per_part)
        store = self.store()
        rows = [
            row
            for entity in ("note", "letter")
            for page in store.pages(self.name, entity, 1000)
            for row in store.read_page(self.name, entity, page)
        ]
        asyncio.run(store.close())
        other.put(*rows)
        if (self.folder / "healed").exists():
            (other.folder / "healed").touch()
        for tree in (self.folder / "runs" / self.name / "distill").glob("*/routing.npz"):
            target = other.folder / tree.relative_to(self.folder)
            target.parent.mkdir(parents=True)
            shutil.copy(tree, target)
        other.run()
        return other.tree()

    def start_and_kill(self, step: str, at: int) -> None:
        """A distillation in a process of its own that dies with SIGKILL at the n-th report of `step`."""
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, __file__, str(self.folder), step, str(at)]
        environment = {**os.environ, "RAY_ADDRESS": address}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def note(row_id: int | str, text: str | None = None, version: int = 1, topic: str | None = "t", **values: Any) -> Row:
    team = values.pop("team", None)
    said = f"note {row_id} says {words(str(row_id), 30)}" if text is None else text
    return Row(Ref("note", str(row_id)), version, {"id": str(row_id), "text": said, "topic": topic, "team": team}, team)


def letter(row_id: int | str, text: str | None = None, version: int = 1) -> Row:
    said = f"letter {row_id} says {words('letter' + str(row_id), 30)}" if text is None else text
    return Row(Ref("letter", str(row_id)), version, {"id": str(row_id), "text": said})


def words(seed: str, count: int) -> str:
    """Words that differ from seed to seed; a text of 30 is longer than any budget of these tests."""
    return " ".join(f"w{hash_number(seed, at) % 97}" for at in range(count))


def hash_number(seed: str, at: int) -> int:
    return zlib.crc32(f"{seed}/{at}".encode())


def main(folder: str, step: str, at: str) -> None:
    # By the name that workers know the classes of this file by.
    tenant = importlib.import_module("digesting").Digested(Path(folder))
    seen = 0

    def killer(progress: Progress) -> None:
        nonlocal seen
        seen += progress.step == step
        if progress.step == step and seen == int(at):
            os.kill(os.getpid(), signal.SIGKILL)

    print(tenant.spread(on_progress=killer).line())


if __name__ == "__main__":
    main(*sys.argv[1:])
