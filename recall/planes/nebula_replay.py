"""Every shape of statement that the NebulaGraph adapter emits, asked of a real cluster and compared.

Works in scratch spaces of its own and drops them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from recall.errors import StoreError
from recall.planes.nebula_pool import Sessions, Work, until_spread
from recall.planes.nebula_session import Deadline, Refused, Result
from recall.planes.nebula_text import quoted
from recall.settings import NebulaSettings

# Names that the file uses for the two spaces; replaced by fresh ones.
SCRATCH = ("recall_replay_shared", "recall_replay_own")


@dataclass(frozen=True, slots=True)
class Shape:
    """A statement and its answer, rows in any order unless `ordered`. `space` is one of SCRATCH, or None."""

    name: str
    space: str | None
    statement: str
    params: Mapping[str, Any]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    ordered: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """One statement that the cluster answered otherwise than the adapter counts on."""

    name: str
    statement: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    address: str
    asked: int
    differences: tuple[Difference, ...]


def read_shapes() -> list[Shape]:
    """The statements of the file that ships with the package, in the order they have to be asked in."""
    lines = resources.files("recall.planes").joinpath("nebula_shapes.jsonl").read_text(encoding="utf-8").splitlines()
    shapes = []
    for line in lines:
        raw = json.loads(line)
        rows = tuple(tuple(row) for row in raw["rows"])
        shapes.append(
            Shape(
                raw["name"],
                raw["space"],
                raw["stmt"],
                raw.get("params", {}),
                tuple(raw["columns"]),
                rows,
                raw["ordered"],
            )
        )
    return shapes


def replay(settings: NebulaSettings) -> ReplayReport:
    """Ask the cluster of `settings` every shape. Raises StoreError when it cannot be reached or refuses to sign in."""
    sessions = Sessions(settings)
    fresh = {name: f"{name}_{uuid.uuid4().hex[:12]}" for name in SCRATCH}
    differences: list[Difference] = []
    shapes = read_shapes()
    try:
        Work(sessions, None, Deadline(settings.timeout_ms / 1000)).execute("YIELD 1 AS ok")
        for shape, before in zip(shapes, [None, *shapes], strict=False):
            if before is not None and _is_index(before) and not _is_index(shape):
                # A storage host that has not heard of the index would store rows without indexing them.
                time.sleep(settings.heartbeat_s)
            found = _ask(sessions, settings, shape, fresh)
            if found is not None:
                differences.append(found)
    finally:
        for name in fresh.values():
            Work(sessions, None, Deadline(settings.timeout_ms / 1000)).execute(f"DROP SPACE IF EXISTS {quoted(name)}")
        sessions.close()
    return ReplayReport(sessions.address, len(shapes), tuple(differences))


def _is_index(shape: Shape) -> bool:
    return shape.statement.startswith(("CREATE TAG INDEX", "LOOKUP"))


def _ask(sessions: Sessions, settings: NebulaSettings, shape: Shape, fresh: Mapping[str, str]) -> Difference | None:
    statement = shape.statement
    for name, actual in fresh.items():
        statement = statement.replace(quoted(name), quoted(actual))
    space = None if shape.space is None else fresh[shape.space]

    def ask() -> Result:
        work = Work(sessions, space, Deadline(settings.timeout_ms / 1000))
        return work.execute_named(statement, shape.params)

    try:
        pause = max(0.02, min(1.0, settings.heartbeat_s / 10))
        result = until_spread(ask, settings.schema_wait_s, pause, sessions.address)
    except Refused as refused:
        return Difference(shape.name, statement, _shown(shape.columns, shape.rows), f"{refused.code}: {refused.text}")
    except StoreError as error:
        return Difference(shape.name, statement, _shown(shape.columns, shape.rows), str(error))
    got = tuple(_plain(row) for row in result.rows)
    same = got == shape.rows if shape.ordered else sorted(map(_key, got)) == sorted(map(_key, shape.rows))
    if same and tuple(result.names) == shape.columns:
        return None
    return Difference(shape.name, statement, _shown(shape.columns, shape.rows), _shown(result.names, got))


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(json.loads(json.dumps(row)))


def _key(row: Sequence[Any]) -> str:
    return json.dumps(row, sort_keys=True)


def _shown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = f"{', '.join(columns)}: {json.dumps(list(rows), ensure_ascii=False)}"
    return text if len(text) <= 400 else f"{text[:400]}…"
