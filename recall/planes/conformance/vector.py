"""The vector plane: exact cosine order, chunks, dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from recall.errors import ModelMismatch, TerminalStoreError
from recall.planes.conformance.corpus import parsed
from recall.planes.conformance.data import DIM, Record, axis, item, unit_vector, vector_table
from recall.planes.conformance.filtering import FilterConformance
from recall.planes.conformance.suite import Loop
from recall.planes.conformance.writing import ALL, WriterConformance
from recall.planes.opening import PlaneContext
from recall.ports import VectorHit, VectorQuery, VectorStore, WriteReport
from recall.rows import Caller, Ref, Tombstone
from recall.where import Where

ITEM = ("item",)


class VectorConformance(WriterConformance, FilterConformance):
    def write(self, store: VectorStore, context: PlaneContext, tenant: str, records: Sequence[Record]) -> WriteReport:
        store.prepare(tenant)
        report = store.upsert(tenant, vector_table(context.registry, tenant, records))
        store.finish(tenant)
        return report

    async def find(
        self,
        store: VectorStore,
        caller: Caller,
        entities: tuple[str, ...] = ITEM,
        where: Where | None = None,
        *,
        limit: int = ALL,
        timeout_s: float | None = None,
    ) -> list[Ref]:
        query = VectorQuery(caller, entities, unit_vector("any"), limit, where)
        return list(dict.fromkeys(hit.ref for hit in await store.search(query, timeout_s=timeout_s)))

    def nearest(
        self, run: Loop, store: VectorStore, tenant: str, vector: np.ndarray, limit: int = ALL
    ) -> list[VectorHit]:
        return run(store.search(VectorQuery(Caller(tenant), ITEM, vector, limit)))

    def test_hits_come_in_the_order_of_exact_cosines(
        self, run: Loop, store: VectorStore, loaded: str, records: Sequence[Record]
    ) -> None:
        query = unit_vector("query")
        hits = run(store.search(VectorQuery(Caller(loaded), ("item", "place"), query, 25)))
        exact = {record.ref: float(unit_vector(repr(record.ref)) @ query) for record in records}
        best = sorted(exact, key=lambda ref: (-exact[ref], ref))[:25]
        assert [hit.ref for hit in hits] == best
        assert [hit.score for hit in hits] == pytest.approx([exact[ref] for ref in best], abs=1e-3)

    def test_orthogonal_and_opposite_vectors_are_kept(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        vectors = {"same": axis(0), "orthogonal": axis(1), "opposite": axis(0, -1)}
        self.write(store, context, tenant, [_with(name, vector) for name, vector in vectors.items()])
        hits = self.nearest(run, store, tenant, axis(0))
        assert [hit.ref.id for hit in hits] == ["same", "orthogonal", "opposite"]
        assert [hit.score for hit in hits] == pytest.approx([1.0, 0.0, -1.0], abs=1e-3)
        assert all(-1.0 <= hit.score <= 1.0 for hit in hits)

    def test_ties_are_broken_by_ref_also_at_the_cut(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        ids = [f"r{i:02d}" for i in range(30)]
        self.write(store, context, tenant, [_with(row_id, axis(3)) for row_id in ids[::-1]])
        for limit in (1, 7, 29, 30, 50):
            hits = self.nearest(run, store, tenant, axis(3), limit)
            assert [hit.ref.id for hit in hits] == ids[:limit]

    def test_every_chunk_is_a_hit_of_its_own(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        row = _with("long", axis(0), axis(1), axis(2), version=4)
        assert self.write(store, context, tenant, [row]) == WriteReport(written=1)
        hits = self.nearest(run, store, tenant, axis(1))
        assert [(hit.ordinal, hit.start, hit.end) for hit in hits] == [(1, 10, 19), (0, 0, 9), (2, 20, 29)]
        assert {hit.version for hit in hits} == {4}
        assert run(store.count(tenant)) == {"item": 1}

    def test_a_row_rewritten_with_fewer_chunks_loses_the_others(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [_with("a", axis(0), axis(1), axis(2)), _with("b", axis(4), axis(5))])
        assert self.write(store, context, tenant, [_with("a", axis(3), version=2)]) == WriteReport(written=1)
        hits = self.nearest(run, store, tenant, axis(3))
        assert sorted((hit.ref.id, hit.ordinal) for hit in hits) == [("a", 0), ("b", 0), ("b", 1)]
        assert hits[0].score == pytest.approx(1.0, abs=1e-3)

    def test_a_stale_row_with_more_chunks_adds_none(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [_with("a", axis(0), version=2)])
        stale = _with("a", axis(1), axis(2), axis(3), version=1)
        assert self.write(store, context, tenant, [stale]) == WriteReport(stale=1)
        assert [hit.ordinal for hit in self.nearest(run, store, tenant, axis(1))] == [0]

    def test_duplicates_with_different_numbers_of_chunks_do_not_mix(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        batch = [_with("a", axis(0), version=2), _with("a", axis(1), axis(2), axis(3), version=1)]
        self.write(store, context, tenant, batch)
        hits = self.nearest(run, store, tenant, axis(0))
        assert [(hit.ordinal, hit.version) for hit in hits] == [(0, 2)]

    def test_a_flag_flipped_on_many_chunks_leaves_no_old_version(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        def rows(version: int, *, active: bool) -> list[Record]:
            chunks = np.stack([unit_vector(f"chunk {i}") for i in range(10)])
            values = {"active": active}
            return [Record(Ref("item", f"r{i}"), version, vectors=chunks, values=values) for i in range(200)]

        self.write(store, context, tenant, rows(1, active=True))
        self.write(store, context, tenant, rows(2, active=False))
        for active, expected in ((True, 0), (False, 2000)):
            where = parsed({"active": active}, context.registry, ITEM)
            hits = run(store.search(VectorQuery(Caller(tenant), ITEM, unit_vector("x"), ALL, where)))
            assert len(hits) == expected
            assert {hit.version for hit in hits} <= {2}

    def test_deleting_the_best_hits_lets_the_next_ones_in(
        self, run: Loop, store: VectorStore, loaded: str, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item(f"r{i}") for i in range(60)])
        before = self.nearest(run, store, tenant, unit_vector("q"))
        store.delete(tenant, [Tombstone(hit.ref, 2) for hit in before[:20]])
        store.finish(tenant)
        after = self.nearest(run, store, tenant, unit_vector("q"), 10)
        assert [hit.ref for hit in after] == [hit.ref for hit in before[20:30]]

    def test_vectors_come_back_as_they_were_stored(
        self, run: Loop, store: VectorStore, context: PlaneContext, loaded: str, records: Sequence[Record]
    ) -> None:
        refs = [record.ref for record in records]
        found = run(store.get(Caller(loaded), [*refs, Ref("item", "no such")]))
        assert found.keys() == set(refs)
        for ref in refs[:20]:
            assert found[ref].dtype == np.float32
            np.testing.assert_allclose(found[ref], unit_vector(repr(ref))[None, :], atol=1e-6)

    def test_vectors_of_a_row_come_back_in_chunk_order_and_only_while_live(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        chunks = np.stack([axis(i) for i in range(12)])
        row = Record(Ref("item", "a"), vectors=chunks, scope="mine")
        self.write(store, context, tenant, [row, item("b"), Record(Ref("item", "bare"), text="", live=False)])
        store.delete(tenant, [Tombstone(Ref("item", "b"), 2)])
        store.finish(tenant)
        refs = [Ref("item", row_id) for row_id in ("a", "b", "bare")]
        found = run(store.get(Caller(tenant), refs))
        assert found.keys() == {Ref("item", "a")}
        np.testing.assert_allclose(found[Ref("item", "a")], chunks, atol=1e-6)
        assert run(store.get(Caller(tenant, "mine"), refs)).keys() == {Ref("item", "a")}
        assert run(store.get(Caller(tenant, "other"), refs)) == {}

    def test_a_vector_of_another_dimension_is_refused_naming_both(
        self, run: Loop, store: VectorStore, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a")])
        with pytest.raises((ModelMismatch, TerminalStoreError), match=rf"(?s)\b8\b.*\b{DIM}\b|\b{DIM}\b.*\b8\b"):
            store.upsert(tenant, vector_table(context.registry, tenant, [item("b")], dim=8))
        with pytest.raises((ModelMismatch, TerminalStoreError), match=rf"(?s)\b8\b.*\b{DIM}\b|\b{DIM}\b.*\b8\b"):
            self.nearest(run, store, tenant, unit_vector("q")[:8])
        assert self.ids(run, store, tenant) == ["a"]


def _with(row_id: str, *vectors: np.ndarray, version: int = 1) -> Record:
    return Record(Ref("item", row_id), version, vectors=np.stack(vectors))
