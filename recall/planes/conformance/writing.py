"""How the vector, search and graph planes have to treat versions, deletes, duplicates and trouble."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pytest

from recall.errors import IndexMissing, TransientStoreError
from recall.keys import store_key
from recall.planes.conformance.corpus import parsed
from recall.planes.conformance.data import AWKWARD_IDS, Record, item
from recall.planes.conformance.suite import Loop, Opener, StoreSuite
from recall.planes.opening import PlaneContext
from recall.ports import WriteReport
from recall.rows import Caller, Ref, Tombstone
from recall.where import Where

# More than any tenant of this suite holds but the crowded one; servers refuse much larger pages.
ALL = 5000


class PlaneSuite(StoreSuite):
    """The two verbs that tests of every plane are written in."""

    @abstractmethod
    def write(self, store: Any, context: PlaneContext, tenant: str, records: Sequence[Record]) -> WriteReport:
        """Prepare, upsert and finish."""

    @abstractmethod
    async def find(
        self,
        store: Any,
        caller: Caller,
        entities: tuple[str, ...] = ("item",),
        where: Where | None = None,
        *,
        limit: int = ALL,
        timeout_s: float | None = None,
    ) -> list[Ref]:
        """Every row that a query without preferences finds, in the order of the store's answer."""

    def ids(self, run: Loop, store: Any, tenant: str, where: Where | None = None) -> list[str]:
        """Sorted ids of the items found."""
        return sorted(ref.id for ref in run(self.find(store, Caller(tenant), where=where)))

    def count(self, run: Loop, store: Any, tenant: str, entity: str = "item") -> int:
        found: int = run(store.count(tenant)).get(entity, 0)
        return found


class WriterConformance(PlaneSuite):
    """Versioned, idempotent writes."""

    def titled(self, run: Loop, store: Any, context: PlaneContext, tenant: str, title: str) -> list[str]:
        return self.ids(run, store, tenant, parsed({"title": title}, context.registry, ["item"]))

    def test_awkward_ids_round_trip(self, run: Loop, store: Any, context: PlaneContext, tenant: str) -> None:
        written = self.write(store, context, tenant, [item(row_id, title=row_id[:40]) for row_id in AWKWARD_IDS])
        assert written == WriteReport(written=len(AWKWARD_IDS))
        assert self.ids(run, store, tenant) == sorted(AWKWARD_IDS)
        for row_id in AWKWARD_IDS:
            assert row_id in self.titled(run, store, context, tenant, row_id[:40])

    def test_awkward_ids_can_be_deleted_one_by_one(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item(row_id) for row_id in AWKWARD_IDS])
        kept, gone = AWKWARD_IDS[::2], AWKWARD_IDS[1::2]
        report = store.delete(tenant, [Tombstone(Ref("item", row_id), 2) for row_id in gone])
        store.finish(tenant)
        assert report == WriteReport(written=len(gone))
        assert self.ids(run, store, tenant) == sorted(kept)

    def test_an_empty_table_leaves_an_empty_index(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        assert self.write(store, context, tenant, []) == WriteReport()
        assert run(self.find(store, Caller(tenant))) == []
        assert self.count(run, store, tenant) == 0
        assert store.hashes(tenant, []) == {}

    def test_of_duplicates_in_one_batch_the_highest_version_wins_then_the_last(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        batch = [item("a", 2, title="new"), item("a", 1, title="old"), item("b", 5, title="old")]
        self.write(store, context, tenant, [*batch, item("b", 5, title="new")])
        assert self.ids(run, store, tenant) == ["a", "b"]
        assert self.titled(run, store, context, tenant, "new") == ["a", "b"]
        assert self.count(run, store, tenant) == 2

    def test_the_same_batch_twice_is_the_same_store(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        batch = [item(f"r{i}", 3, title=f"t{i}") for i in range(50)]
        self.write(store, context, tenant, batch)
        once = run(self.find(store, Caller(tenant)))
        assert self.write(store, context, tenant, batch).stale == 0
        assert run(self.find(store, Caller(tenant))) == once
        assert self.count(run, store, tenant) == 50

    def test_a_newer_version_replaces_the_row(self, run: Loop, store: Any, context: PlaneContext, tenant: str) -> None:
        self.write(store, context, tenant, [item("a", 1, title="old"), item("b", 1, title="old")])
        assert self.write(store, context, tenant, [item("a", 2, title="new")]) == WriteReport(written=1)
        assert self.titled(run, store, context, tenant, "new") == ["a"]
        assert self.titled(run, store, context, tenant, "old") == ["b"]
        assert self.count(run, store, tenant) == 2

    def test_the_same_version_replaces_the_row(self, run: Loop, store: Any, context: PlaneContext, tenant: str) -> None:
        self.write(store, context, tenant, [item("a", 1, title="old")])
        assert self.write(store, context, tenant, [item("a", 1, title="new")]).stale == 0
        assert self.titled(run, store, context, tenant, "new") == ["a"]

    def test_a_stale_write_is_ignored_and_counted(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 9, title="kept"), item("b", 1, title="old")])
        hashes = store.hashes(tenant, [store_key(tenant, "item", "a")])
        report = self.write(store, context, tenant, [item("a", 8, title="stale"), item("b", 2, title="new")])
        assert report == WriteReport(written=1, stale=1)
        assert self.titled(run, store, context, tenant, "kept") == ["a"]
        assert self.titled(run, store, context, tenant, "stale") == []
        assert store.hashes(tenant, [store_key(tenant, "item", "a")]) == hashes

    def test_versions_beyond_the_precision_of_a_float_are_told_apart(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 2**62 + 1, title="kept")])
        assert self.write(store, context, tenant, [item("a", 2**62, title="stale")]).stale == 1
        assert self.titled(run, store, context, tenant, "kept") == ["a"]

    def test_a_deleted_row_is_gone_and_can_come_back(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 1), item("b", 1)])
        assert store.delete(tenant, [Tombstone(Ref("item", "a"), 2)]) == WriteReport(written=1)
        store.finish(tenant)
        assert self.ids(run, store, tenant) == ["b"]
        assert self.count(run, store, tenant) == 1
        self.write(store, context, tenant, [item("a", 3, title="back")])
        assert self.ids(run, store, tenant) == ["a", "b"]
        assert self.titled(run, store, context, tenant, "back") == ["a"]

    def test_an_old_event_cannot_resurrect_a_deleted_row(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 1)])
        store.delete(tenant, [Tombstone(Ref("item", "a"), 5), Tombstone(Ref("item", "never seen"), 5)])
        store.finish(tenant)
        # A delete outranks every write whose version is not higher, its own included.
        late = [item("a", 4), item("never seen", 5)]
        assert self.write(store, context, tenant, late) == WriteReport(stale=2)
        assert self.ids(run, store, tenant) == []
        assert self.write(store, context, tenant, [item("a", 6)]) == WriteReport(written=1)
        assert self.ids(run, store, tenant) == ["a"]

    def test_a_stale_delete_is_ignored_and_counted(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 5)])
        assert store.delete(tenant, [Tombstone(Ref("item", "a"), 4)]) == WriteReport(stale=1)
        store.finish(tenant)
        assert self.ids(run, store, tenant) == ["a"]
        store.delete(tenant, [Tombstone(Ref("item", "a"), 5)])
        store.finish(tenant)
        assert self.ids(run, store, tenant) == []

    def test_a_tombstone_among_the_records_is_a_delete(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 1), item("b", 1)])
        self.write(store, context, tenant, [Record(Ref("item", "a"), 2, "", live=False, hash="")])
        assert self.ids(run, store, tenant) == ["b"]
        assert self.write(store, context, tenant, [item("a", 1)]) == WriteReport(stale=1)
        assert self.ids(run, store, tenant) == ["b"]

    def test_rows_without_text_are_found_by_nothing_but_keep_their_hash(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        bare = Record(Ref("item", "bare"), 1, "", values={"title": "x"}, live=False, hash="f" * 32)
        self.write(store, context, tenant, [bare, item("a", 1, title="x")])
        assert self.ids(run, store, tenant) == ["a"]
        assert self.titled(run, store, context, tenant, "x") == ["a"]
        assert self.count(run, store, tenant) == 1
        key = store_key(tenant, "item", "bare")
        assert store.hashes(tenant, [key]) == {key: "f" * 32}

    def test_a_row_may_lose_and_regain_its_text(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 1)])
        self.write(store, context, tenant, [Record(Ref("item", "a"), 2, "", live=False)])
        assert self.ids(run, store, tenant) == []
        # Not a tombstone: the same version with text again is no resurrection.
        self.write(store, context, tenant, [item("a", 2)])
        assert self.ids(run, store, tenant) == ["a"]

    def test_hashes_come_back_for_thousands_of_keys(self, store: Any, context: PlaneContext, tenant: str) -> None:
        records = [item(f"r{i}", title=str(i)) for i in range(2500)]
        self.write(store, context, tenant, records)
        keys = [store_key(tenant, "item", record.ref.id) for record in records]
        expected = {key: record.content_hash for key, record in zip(keys, records, strict=True)}
        assert store.hashes(tenant, [*keys, "0" * 32]) == expected

    def test_a_deleted_row_has_no_content_hash(self, store: Any, context: PlaneContext, tenant: str) -> None:
        self.write(store, context, tenant, [item("a", 1)])
        store.delete(tenant, [Tombstone(Ref("item", "a"), 2)])
        store.finish(tenant)
        key = store_key(tenant, "item", "a")
        assert store.hashes(tenant, [key]).get(key, "") == ""

    def test_prepare_and_finish_may_be_repeated(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a")])
        store.prepare(tenant)
        store.finish(tenant)
        store.finish(tenant)
        assert self.ids(run, store, tenant) == ["a"]

    def test_a_tenant_that_was_never_loaded_is_named_missing(self, run: Loop, store: Any) -> None:
        with pytest.raises(IndexMissing, match="nobody-here"):
            run(self.find(store, Caller("nobody-here")))
        assert run(store.count("nobody-here")) == {}
        assert store.hashes("nobody-here", ["0" * 32]) == {}

    def test_health_answers(self, run: Loop, store: Any) -> None:
        run(store.health(timeout_s=30))

    def test_closing_twice_is_closing_once(self, run: Loop, opener: Opener, context: PlaneContext) -> None:
        another = opener(context)
        run(another.close())
        run(another.close())

    def test_a_deadline_that_has_passed_is_a_transient_error(
        self, run: Loop, store: Any, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a")])
        started = time.monotonic()
        with pytest.raises(TransientStoreError):
            run(self.find(store, Caller(tenant), timeout_s=0.0))
        with pytest.raises(TransientStoreError):
            run(store.count(tenant, timeout_s=0.0))
        assert time.monotonic() - started < 5
        assert self.ids(run, store, tenant) == ["a"]

    def test_many_readers_at_once_see_the_same(self, run: Loop, store: Any, context: PlaneContext, tenant: str) -> None:
        self.write(store, context, tenant, [item(f"r{i}") for i in range(20)])

        async def read() -> list[list[Ref]]:
            return await asyncio.gather(*(self.find(store, Caller(tenant)) for _ in range(32)))

        answers = run(read())
        assert all(answer == answers[0] for answer in answers)
        assert len(answers[0]) == 20
