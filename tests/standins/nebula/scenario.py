"""Makes the adapter emit every shape of statement it has, and writes down what was answered.

`PYTHONPATH=tests python -m standins.nebula.scenario` writes `recall/planes/nebula_shapes.jsonl` anew; a test compares.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from standins.nebula.server import Server

from recall.keys import content_hash
from recall.planes.conformance.corpus import parsed
from recall.planes.conformance.data import Edge, Record, conformance_registry, edge_table, node_table
from recall.planes.nebula import NebulaGraph
from recall.planes.nebula_pool import Work
from recall.planes.nebula_replay import SCRATCH
from recall.planes.nebula_session import Result
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import NeighbourQuery
from recall.registry import Step
from recall.rows import Caller, Json, Ref, Tombstone
from recall.settings import NebulaSettings

FILE = Path(__file__).parents[3] / "recall" / "planes" / "nebula_shapes.jsonl"
TENANT = "acme"
_HUB = Ref("place", "hub")
_STEPS = (
    Step("item", "AT", "place", reverse=False),
    Step("item", "NEAR", "place", reverse=False),
    Step("item", "HAS", "item", reverse=False),
    Step("item", "HAS", "item", reverse=True),
    Step("place", "AT", "item", reverse=True),
)
_FILTERS: tuple[Mapping[str, object], ...] = (
    {"title": 'it\'s "7" \\ \n 系'},
    {"title": {"ne": "x"}, "amount": {"ne": 7}},
    {"amount": {"in": [1, -5, -(2**63)]}, "status": {"in": ["open", "closed"]}},
    {"amount": {"notin": [1, 2]}, "active": {"in": [True, False]}},
    {"amount": {"gt": -1, "gte": 0, "lt": 9, "lte": 8}},
    {"due": {"gte": "2026-01-01"}, "seen": {"lt": "2026-01-02T00:00:00Z"}},
    {"active": True, "status": {"isnull": False}},
    {"or": [{"active": {"isnull": True}}, {"status": "open", "or": [{"amount": 1}, {"amount": 2}]}]},
    {"title": {"like": "pump%"}},
    {"title": {"like": "%um%"}},
    {"title": {"like": "p_mp%"}},
    {"title": {"like": "%"}},
    {"title": {"ilike": "PUMP%"}},
    {"cost": {"gt": 1.5}},
    {"cost": {"lt": 1e-7}},
    {"cost": {"gte": 1.5, "lte": 1e21}},
    {"cost": 2.5},
    {"cost": {"in": [2.5, 3.0]}},
    {"cost": {"ne": 2.5}},
)
_QUERIES: tuple[tuple[str, Mapping[str, Json]], ...] = (
    ("MATCH (n:item {id: $id})-[:AT]->(m:place) RETURN m.id AS id", {"id": "a"}),
    ("MATCH (n:item {id: $id})-[:`HAS`|:`NEAR`*1..3]->(m:item) RETURN DISTINCT m.id ORDER BY m.id", {"id": "a"}),
    ("MATCH (n:item) RETURN n.id AS id ORDER BY id", {}),
    ("MATCH (n:item) RETURN n.id AS id ORDER BY id DESC SKIP 1 LIMIT 2", {}),
    ("MATCH (n:place)<-[:AT]-(m:item) WHERE n.id = $id AND m.title STARTS WITH 'pump' RETURN m.id", {"id": "hub"}),
    ("MATCH (n:item)-[:HAS]-(m:item) WHERE n.id IN $ids AND NOT m.amount > 5 RETURN n.id, m.id", {"ids": ["a", "b"]}),
    ("MATCH p=(n:item {id: $id})-[:HAS*1..2]->(m:item) RETURN m.id AS id, length(p) AS hops", {"id": "a"}),
    ("MATCH (n:item) WHERE n.title CONTAINS 'um' OR n.status IS NULL RETURN count(*) AS n, max(n.amount) AS most", {}),
    ("MATCH (n:item {id: $id})-[:AT]->(m) RETURN m.id AS id", {"id": "a"}),
    ("MATCH (n:item) WHERE n.title ENDS WITH '7' RETURN n.id AS id ORDER BY n.amount", {}),
)
_NATIVE: tuple[tuple[str, Mapping[str, Json]], ...] = (
    ("GO 1 TO 2 STEPS FROM $a OVER HAS, `AT` YIELD DISTINCT id($$) AS reached", {"a": {"entity": "item", "id": "a"}}),
    ("FETCH PROP ON item $a YIELD properties(vertex).rid AS id", {"a": {"entity": "item", "id": "a"}}),
)


async def _count(recorder: _Recorder) -> None:
    """What a store asks first that has not prepared the tenant itself."""
    recorder.part = "count, by another process"
    await recorder.store.count(TENANT)
    await recorder.store.close()


class _Recorder:
    """Stands before a store's sessions and keeps what they answer. The same statement twice is kept when it differs."""

    def __init__(self, store: NebulaGraph, space: str, placeholder: str) -> None:
        self.entries: list[dict[str, object]] = []
        self.part = ""
        self.store = store
        self._space, self._placeholder = space, placeholder
        sessions = store._sessions
        self._execute = sessions.execute
        sessions.execute = self._recorded  # type: ignore[method-assign]

    def _recorded(self, work: Work, text: str, params: Mapping[str, Any]) -> Result:
        result = self._execute(work, text, params)
        entry: dict[str, object] = {
            "name": self.part,
            "space": None if work.space is None else self._placeholder,
            "stmt": text.replace(self._space, self._placeholder),
        }
        if params:
            entry["params"] = dict(params)
        entry |= {
            "columns": list(result.names),
            "rows": [list(row) for row in result.rows],
            "ordered": "ORDER BY" in text,
        }
        self.entries.append(entry)
        return result


def record() -> list[dict[str, object]]:
    """The scenario against a fresh stand-in, in both kinds of spaces."""
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        context = PlaneContext(conformance_registry(), ModelId("none", 2), Path(folder))
        found: list[dict[str, object]] = []
        for isolation, placeholder in zip(("shared", "dedicated"), SCRATCH, strict=True):
            raw = {"kind": "nebula", "addresses": [server.address], "heartbeat_s": 0, "isolation": isolation}
            settings = NebulaSettings.model_validate({**raw, "partition_num": 1, "pool_size": 1, "read_rows": 3})
            store = NebulaGraph(settings, context)
            recorder = _Recorder(store, store._schemas.space(TENANT), placeholder)
            asyncio.run(_Scenario(store, recorder, context).play(traversing=isolation == "dedicated"))
            another = _Recorder(NebulaGraph(settings, context), store._schemas.space(TENANT), placeholder)
            asyncio.run(_count(another))
            found += [*recorder.entries, *another.entries]
    return _without_repeats(found)


class _Scenario:
    def __init__(self, store: NebulaGraph, recorder: _Recorder, context: PlaneContext) -> None:
        self._store = store
        self._recorder = recorder
        self._registry = context.registry

    async def play(self, *, traversing: bool) -> None:
        self._do("prepare", lambda: self._store.prepare(TENANT))
        self._write()
        self._recorder.part = "health"
        await self._store.health()
        self._recorder.part = "count"
        await self._store.count(TENANT)
        if not traversing:
            await self._neighbours()
        else:
            for query, params in (*_QUERIES, *_NATIVE):
                self._recorder.part = f"traverse: {query}"
                await self._store.traverse(Caller(TENANT), query, params, limit=5, timeout_s=10)
            self._recorder.part = "traverse in a scope"
            for query, params in _QUERIES[:2]:
                await self._store.traverse(Caller(TENANT, "s"), query, params, limit=5, timeout_s=10)
        self._remove()
        await self._store.close()

    def _do(self, part: str, work: Callable[[], object]) -> None:
        self._recorder.part = part
        work()

    def _put(self, part: str, records: Sequence[Record]) -> None:
        nodes, edges = node_table(self._registry, TENANT, records), edge_table(TENANT, records)
        self._do(part, lambda: self._store.upsert(TENANT, nodes, edges))

    def _write(self) -> None:
        a, b, c, d = (Ref("item", name) for name in "abcd")
        odd: dict[str, Json] = {"title": 'it\'s "7" \\ \n\r 系🙂', "cost": 1e-9, "amount": -(2**63), "active": False}
        rows = [
            Record(_HUB, values={"status": "open", "cost": 5}),
            Record(
                a, values={"title": "pump 7", "amount": 1, "cost": 2.5, "active": True}, edges=_edges("bcd"), scope="s"
            ),
            Record(b, values=odd, edges=(Edge("HAS", c), Edge("AT", _HUB)), scope="s"),
            Record(c, values={"due": "2026-01-10", "seen": "2026-01-01T00:00:00.000000Z"}, edges=(Edge("AT", _HUB),)),
            Record(d, values={"status": "open", "amount": 8}, edges=(Edge("AT", _HUB),)),
            Record(Ref("link", "l1"), edges=(Edge("NEAR", _HUB, a),)),
            Record(Ref("link", "l2"), edges=(Edge("NEAR", _HUB, a),)),
        ]
        self._put("write", rows)
        self._put("write a long text", [Record(Ref("place", "long"), values={"status": "x" * 66_000})])
        self._put(
            "replace edges of no edge table", [Record(a, 2, values=rows[1].values, edges=_edges("bc"), scope="s")]
        )
        self._do("hashes", lambda: self._store.hashes(TENANT, [content_hash("absent")]))

    def _remove(self) -> None:
        gone = [Tombstone(Ref("item", "b"), 5), Tombstone(Ref("link", "l1"), 5)]
        self._do("delete", lambda: self._store.delete(TENANT, gone))
        self._put("revive", [Record(Ref("item", "b"), 6)])

    async def _neighbours(self) -> None:
        await self._ask("neighbours", None, Caller(TENANT))
        await self._ask("neighbours in a scope", None, Caller(TENANT, "s"))
        await self._ask("neighbours of a hub", None, Caller(TENANT), fanout=2)
        for raw in _FILTERS:
            await self._ask(f"filter {json.dumps(raw)}", raw, Caller(TENANT))

    async def _ask(self, part: str, raw: Mapping[str, object] | None, caller: Caller, fanout: int = 10) -> None:
        self._recorder.part = part
        where = None if raw is None else parsed(raw, self._registry, ["item"])
        sources = (_HUB, *(Ref("item", name) for name in "abc"))
        await self._store.neighbours(NeighbourQuery(caller, sources, _STEPS, fanout, where))


def _edges(targets: str) -> tuple[Edge, ...]:
    return (*(Edge("HAS", Ref("item", target)) for target in targets), Edge("AT", _HUB))


def _without_repeats(entries: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Leave out a statement that only asks again what was asked and answered the same."""
    asked: dict[str, str] = {}
    kept = []
    for entry in entries:
        key, answer = f"{entry['space']} {entry['stmt']}", json.dumps(entry["rows"])
        if asked.get(key) != answer or not str(entry["stmt"]).startswith(("GO", "FETCH", "MATCH", "LOOKUP", "SHOW")):
            kept.append(entry)
        asked[key] = answer
    return kept


def write(entries: Sequence[dict[str, object]], path: Path = FILE) -> None:
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(record())
