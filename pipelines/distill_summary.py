"""What a distillation says of itself: steps while it runs, a summary at the end, and what the next run must know."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pipelines.backfill import BackfillSummary
from pipelines.storage import Folder
from recall.keys import compact_json

STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a distillation; `level 1.2` is the second pass above the rows."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class DistillSummary:
    """Outcome of one distillation. `calls`: to the summarizer; `saved`: stored summaries of a model that stood.

    `rows`: source rows with a text; `blocked` and `failed` count rows and nodes above them. A run is `complete` when
    nothing failed. `depth`: passes above the rows. `backfill` is None when no digest changed.
    """

    tenant: str
    run: str
    rows: int
    changed: int
    calls: int
    saved: int
    written: int
    removed: int
    blocked: int
    failed: int
    depth: int
    seconds: float
    startup_seconds: float
    dry_run: bool
    dead_letters: str | None = None
    backfill: BackfillSummary | None = None

    @property
    def complete(self) -> bool:
        return not self.failed

    def line(self) -> str:
        """The lines a person reads at the end."""
        if self.dry_run:
            return (
                f"dry run of {self.tenant}: {self.rows:,} rows, {self.changed:,} changed, "
                f"at least {self.calls:,} calls, {self.blocked:,} blocked · {self.seconds:.1f} s"
            )
        said = (
            f"distill {self.tenant}: {self.rows:,} rows, {self.changed:,} changed · {self.calls:,} calls made, "
            f"{self.saved:,} saved · {self.written:,} nodes written, {self.removed:,} removed · {self.blocked:,} "
            f"blocked, {self.failed:,} failed · {self.seconds:.1f} s + {self.startup_seconds:.1f} s to start Ray"
        )
        if self.failed:
            said += f"\n  incomplete: run it again to repair; the reasons are in {self.dead_letters}"
        return said if self.backfill is None else f"{said}\n{self.backfill.line()}"


@dataclass(frozen=True, slots=True)
class State:
    """What the last run left: its recipe, the version of its nodes, and whether nothing failed.

    `nodes` and `leaves` are stored digests, in all and of level 0; `asked` those that a model made; `loaded`: the
    planes hold them. `fingerprint`: of the rows that it read, in hexadecimal.
    """

    recipe: str = ""
    version: int = 0
    complete: bool = False
    nodes: int = 0
    leaves: int = 0
    asked: int = 0
    loaded: bool = False
    fingerprint: str = ""

    @classmethod
    def of(cls, folder: Folder) -> State:
        """What is stored; of no recipe, and incomplete, before the first run."""
        return cls(**json.loads(folder.read(STATE))) if STATE in folder.names() else cls()

    def put(self, folder: Folder) -> None:
        folder.put(STATE, compact_json(asdict(self)))
