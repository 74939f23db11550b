"""Applying one batch to a ladybug graph: rows to nodes, declared edges to relations between live nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ladybug
import pyarrow as pa

from recall.planes.ladybug_files import fetch
from recall.planes.ladybug_ledger import LedgerEdge, LedgerRow, Relinking
from recall.planes.ladybug_schema import OWNER, SCOPE, GraphNames
from recall.readonly import quoted
from recall.registry import Entity


def ledger_rows(table: pa.Table) -> list[LedgerRow]:
    columns = [table[name].to_pylist() for name in ("row_key", "entity", "id", "version", "hash", "live")]
    return [LedgerRow(*values) for values in zip(*columns, strict=True)]


def owned_edges(rows: Iterable[LedgerRow], edges: pa.Table) -> list[LedgerEdge]:
    """The distinct edges of the live `rows`, of just the version that was admitted."""
    versions = {row.key: row.version for row in rows if row.live}
    names = ("owner", "rel", "source_entity", "source_id", "target_entity", "target_id", "version")
    columns = (edges[name].to_pylist() for name in names)
    return list(
        dict.fromkeys(
            LedgerEdge(*values) for *values, version in zip(*columns, strict=True) if versions.get(values[0]) == version
        )
    )


class GraphBatch:
    """One batch inside one transaction of `connection`."""

    def __init__(self, connection: ladybug.Connection, names: GraphNames) -> None:
        self._connection = connection
        self._names = names
        self._pairs = {(step.rel, step.source, step.target) for step in names.registry.relations}

    def apply(self, rows: pa.Table, before: Mapping[str, LedgerRow], relinking: Relinking) -> None:
        """Bring nodes and relations to the state of `rows`; `before` is what the ledger knew of them."""
        self._unlink(relinking.unlink)
        for label in self._names.labels:
            entity = self._names.registry.entity(label)
            self._nodes(entity, [row for row in rows.to_pylist() if row["entity"] == label], before)
        self._link(relinking.link)

    def _unlink(self, edges: Iterable[tuple[str, str, str, str]]) -> None:
        grouped: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for owner, rel, entity, row_id in edges:
            grouped[rel, entity].append((row_id, owner))
        for (rel, entity), pairs in sorted(grouped.items()):
            if any((rel, entity) == (r, source) for r, source, _ in self._pairs):
                table = quoted(self._names.relations[rel])
                statement = (
                    f"MATCH (x:{quoted(entity)} {{id: c0}})-[r:{table}]->() WHERE r.{quoted(OWNER)} = c1 DELETE r"
                )
                self._run(statement, pairs, 2)

    def _nodes(self, entity: Entity, rows: Sequence[Mapping[str, Any]], before: Mapping[str, LedgerRow]) -> None:
        kept = [row for row in rows if row["live"] and _was_live(row, before)]
        risen = [row for row in rows if row["live"] and not _was_live(row, before)]
        gone = [row["id"] for row in rows if not row["live"]]
        # A risen row has a node already when a process was killed between the graph and the ledger.
        self._remove(entity, [*gone, *self._present(entity, [row["id"] for row in risen])])
        columns = {"id": "id", "scope": SCOPE}
        columns |= {column.column: name for column, name in self._names.columns(entity).items() if name != "id"}
        values = [f"{quoted(name)}: c{i}" for i, name in enumerate(columns.values())]
        self._store(f"CREATE (:{quoted(entity.name)} {{{', '.join(values)}}})", risen, columns)
        changes = [f"x.{quoted(name)} = c{i}" for i, name in enumerate(columns.values()) if i]
        self._store(f"MATCH (x:{quoted(entity.name)} {{id: c0}}) SET {', '.join(changes)}", kept, columns)

    def _present(self, entity: Entity, ids: Sequence[str]) -> list[str]:
        if not ids:
            return []
        asked = f"UNWIND $ids AS k MATCH (x:{quoted(entity.name)} {{id: k}}) RETURN x.id"
        return [row[0] for row in fetch(self._connection, asked, {"ids": list(ids)})]

    def _remove(self, entity: Entity, ids: Sequence[str]) -> None:
        statement = f"MATCH (x:{quoted(entity.name)} {{id: c0}}) DETACH DELETE x"
        self._run(statement, [(row_id,) for row_id in ids], 1)

    def _store(self, statement: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
        if rows:
            schema = self._names.node_schema
            arrays = [pa.array([row[name] for row in rows], schema.field(name).type) for name in columns]
            self._load(statement, pa.table(arrays, names=[f"c{i}" for i in range(len(arrays))]))

    def _link(self, edges: Iterable[LedgerEdge]) -> None:
        grouped: defaultdict[tuple[str, str, str], list[tuple[str, str, str]]] = defaultdict(list)
        for edge in edges:
            grouped[edge.rel, edge.source_entity, edge.target_entity].append(
                (edge.source_id, edge.target_id, edge.owner)
            )
        for (rel, source, target), ends in sorted(grouped.items()):
            if (rel, source, target) in self._pairs:
                created = f"CREATE (a)-[:{quoted(self._names.relations[rel])} {{{quoted(OWNER)}: c2}}]->(b)"
                matched = f"MATCH (a:{quoted(source)} {{id: c0}}) MATCH (b:{quoted(target)} {{id: c1}})"
                self._run(f"{matched} {created}", ends, 3)

    def _run(self, statement: str, rows: Sequence[tuple[str, ...]], width: int) -> None:
        if rows:
            arrays = [pa.array([row[i] for row in rows], pa.string()) for i in range(width)]
            self._load(statement, pa.table(arrays, names=[f"c{i}" for i in range(width)]))

    def _load(self, statement: str, table: pa.Table) -> None:
        # COPY is no faster and, when it fails or is rolled back, leaves files that the next checkpoint cannot handle.
        fetch(self._connection, f"LOAD FROM $rows {statement}", {"rows": table})


def _was_live(row: Mapping[str, Any], before: Mapping[str, LedgerRow]) -> bool:
    known = before.get(row["row_key"])
    return known is not None and known.live
