"""The source of truth: values come back as they were written, in any number, by id and by page."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Mapping

import pytest

from recall.errors import Busy, InvalidFilter, TransientStoreError, UnknownEntity
from recall.planes.conformance.data import AWKWARD_IDS, INJECTION, conformance_registry
from recall.planes.conformance.suite import Loop, Opener, StoreSuite
from recall.planes.opening import PlaneContext
from recall.ports import Page, RowStore, WriteReport
from recall.rows import Caller, Json, Ref, Row, Tombstone
from recall.where import AllOf, Condition, parse_where

VALUES: Mapping[str, Json] = {
    "title": "Ärger mit 认证 🙂 and 'quotes' \\ \"here\"",
    "status": "",
    "cost": 0.1,
    "amount": -(2**63),
    "active": False,
    "due": "2024-02-29",
    "seen": "2026-01-02T03:04:05.000006Z",
    "region": "north",
    "body": "line\n" * 14_000,
    "place": None,
    "parts": ["a", "", 'b"c'],
    "meta": {"nested": [1, 2.5, None, True, {"认": "证"}], "": ""},
}


def row(row_id: str, version: int = 1, **values: Json) -> Row:
    region = values.get("region")
    return Row(Ref("item", row_id), version, values, None if region is None else str(region))


class RowsConformance(StoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, opener: Opener, context: PlaneContext, run: Loop) -> Iterator[RowStore]:
        store: RowStore = opener(context)
        store.prepare()
        yield store
        run(store.close())

    def get(self, run: Loop, store: RowStore, tenant: str, *ids: str, scope: str | None = None) -> dict[str, Row]:
        return run(store.get_many(Caller(tenant, scope), "item", ids))

    def test_values_of_every_type_come_back_in_declaration_order(
        self, run: Loop, store: RowStore, context: PlaneContext, tenant: str
    ) -> None:
        rows = [row("full", 2**62 + 1, **VALUES), row("bare", 3)]
        assert store.upsert(tenant, rows) == WriteReport(written=2)
        found = self.get(run, store, tenant, "full", "bare")
        declared = list(context.registry.entity("item").columns)
        assert found["full"] == Row(Ref("item", "full"), 2**62 + 1, {"id": "full", **VALUES}, "north")
        assert list(found["full"].values) == declared
        assert found["bare"] == Row(Ref("item", "bare"), 3, {**dict.fromkeys(declared), "id": "bare"}, None)
        assert type(found["full"].values["active"]) is bool

    def test_awkward_ids_round_trip(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row(row_id, title=row_id) for row_id in AWKWARD_IDS])
        found = self.get(run, store, tenant, *AWKWARD_IDS)
        assert {row_id: found[row_id].values["title"] for row_id in AWKWARD_IDS} == {i: i for i in AWKWARD_IDS}
        assert [r.ref.id for r in self._all(store, tenant, 5)] == sorted(AWKWARD_IDS)
        store.delete(tenant, [Tombstone(Ref("item", row_id), 2) for row_id in AWKWARD_IDS[::2]])
        assert self.get(run, store, tenant, *AWKWARD_IDS).keys() == set(AWKWARD_IDS[1::2])

    def test_integer_keys_are_asked_for_as_text(self, run: Loop, store: RowStore, tenant: str) -> None:
        rows = [Row(Ref("badge", str(n)), 1, {"id": n, "name": f"n{n}"}) for n in (7, 30, -4, 2**63 - 1)]
        assert store.upsert(tenant, rows).written == 4
        ids = ["7", "30", "-4", str(2**63 - 1), "007", "seven", "", str(2**70)]
        found = run(store.get_many(Caller(tenant), "badge", ids))
        assert list(found.values()) == rows
        pages = store.pages(tenant, "badge", 1)
        assert sorted(r.ref.id for page in pages for r in store.read_page(tenant, "badge", page)) == sorted(ids[:4])

    def test_nothing_is_found_where_nothing_was_written(self, run: Loop, store: RowStore) -> None:
        assert self.get(run, store, "nobody-here", "a") == {}
        assert run(store.count("nobody-here")) == {}
        assert store.pages("nobody-here", "item", 10) == []
        assert store.read_page("nobody-here", "item", Page(None, None)) == []
        assert store.upsert("nobody-here", []) == WriteReport()
        assert "nobody-here" not in store.tenants()

    def test_an_unknown_entity_is_named(self, run: Loop, store: RowStore, tenant: str) -> None:
        with pytest.raises(UnknownEntity, match="ghost"):
            run(store.get_many(Caller(tenant), "ghost", ["a"]))
        with pytest.raises(UnknownEntity, match="ghost"):
            store.upsert(tenant, [Row(Ref("ghost", "a"), 1, {})])

    def test_thousands_of_ids_are_read_at_once(self, run: Loop, store: RowStore, tenant: str) -> None:
        ids = [f"r{i}" for i in range(3500)]
        assert store.upsert(tenant, [row(row_id) for row_id in ids]).written == 3500
        assert list(self.get(run, store, tenant, *ids, "no such", ids[0])) == ids
        assert self.get(run, store, tenant) == {}
        assert run(store.count(tenant)) == {"item": 3500}

    def test_a_row_equal_to_the_stored_one_is_left_alone(self, run: Loop, store: RowStore, tenant: str) -> None:
        rows = [row("a", 2, **VALUES), row("b", 2)]
        store.upsert(tenant, rows)
        assert store.upsert(tenant, rows) == WriteReport()
        assert store.upsert(tenant, [row("a", 2, **VALUES), row("b", 2, title="now")]) == WriteReport(written=1)
        assert store.upsert(tenant, [row("b", 3, title="now")]) == WriteReport(written=1)
        assert self.get(run, store, tenant, "b")["b"].version == 3

    def test_of_duplicates_in_one_batch_the_highest_version_wins_then_the_last(
        self, run: Loop, store: RowStore, tenant: str
    ) -> None:
        batch = [row("a", 2, title="new"), row("a", 1, title="old"), row("b", 5, title="old")]
        assert store.upsert(tenant, [*batch, row("b", 5, title="new")]).written == 2
        assert {r.values["title"] for r in self.get(run, store, tenant, "a", "b").values()} == {"new"}

    def test_a_stale_write_is_ignored_and_counted(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row("a", 2**62 + 1, title="kept"), row("b", 1)])
        batch = [row("a", 2**62, title="stale"), row("b", 2), row("c", 1)]
        assert store.upsert(tenant, batch) == WriteReport(written=2, stale=1)
        assert self.get(run, store, tenant, "a")["a"].values["title"] == "kept"

    def test_a_delete_leaves_a_version_and_nothing_else(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row("a", 1, **VALUES), row("b", 1)])
        gone = [Tombstone(Ref("item", "a"), 5), Tombstone(Ref("item", "never seen"), 5)]
        assert store.delete(tenant, gone) == WriteReport(written=2)
        assert store.delete(tenant, gone) == WriteReport()
        assert store.delete(tenant, [Tombstone(Ref("item", "a"), 4)]) == WriteReport(stale=1)
        assert self.get(run, store, tenant, "a", "b", "never seen").keys() == {"b"}
        assert run(store.count(tenant)) == {"item": 1}
        assert self._all(store, tenant, 10)[0] == Row(Ref("item", "a"), 5, {}, deleted=True)
        late = [row("a", 4), row("a", 5), row("never seen", 5)]
        assert store.upsert(tenant, late) == WriteReport(stale=2)
        assert store.upsert(tenant, [row("a", 6, title="back")]) == WriteReport(written=1)
        assert self.get(run, store, tenant, "a")["a"].values["title"] == "back"

    def test_a_deleted_row_may_be_upserted_as_such(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row("a", 1)])
        assert store.upsert(tenant, [Row(Ref("item", "a"), 2, {}, deleted=True)]) == WriteReport(written=1)
        assert self.get(run, store, tenant, "a") == {}

    def test_pages_cover_every_row_once(self, store: RowStore, tenant: str) -> None:
        ids = [f"r{i:03d}" for i in range(257)]
        store.upsert(tenant, [row(row_id) for row_id in ids[::-1]])
        store.delete(tenant, [Tombstone(Ref("item", row_id), 2) for row_id in ids[::50]])
        for size in (1, 50, 257, 1000):
            pages = store.pages(tenant, "item", size)
            read = [[r.ref.id for r in store.read_page(tenant, "item", page)] for page in pages]
            assert [row_id for page in read for row_id in page] == ids
            assert max(map(len, read)) <= size
            assert len(pages) <= -(-257 // size) + 1
        assert sum(r.deleted for r in self._all(store, tenant, 50)) == len(ids[::50])

    def test_rows_written_after_the_pages_were_cut_fall_into_them(self, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row(f"m{i}") for i in range(6)])
        pages = store.pages(tenant, "item", 2)
        store.upsert(tenant, [row("a"), row("m3x"), row("z")])
        read = [r.ref.id for page in pages for r in store.read_page(tenant, "item", page)]
        assert read == ["a", "m0", "m1", "m2", "m3", "m3x", "m4", "m5", "z"]

    def test_tenants_with_equal_ids_never_meet(self, run: Loop, store: RowStore, tenant: str) -> None:
        other = f"{tenant}-b"
        store.upsert(tenant, [row("same", title="mine"), row("mine")])
        store.upsert(other, [row("same", 9, title="theirs"), row("theirs")])
        assert self.get(run, store, tenant, "same", "theirs", "mine").keys() == {"same", "mine"}
        assert self.get(run, store, tenant, "same")["same"].values["title"] == "mine"
        assert [r.ref.id for r in self._all(store, other, 1)] == ["same", "theirs"]
        store.delete(other, [Tombstone(Ref("item", "same"), 10)])
        assert "same" in self.get(run, store, tenant, "same")
        assert {tenant, other} <= set(store.tenants())
        assert store.tenants() == sorted(store.tenants())

    def test_a_scope_sees_its_own_rows_only(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row("n", region="north"), row("s", region="south"), row("none")])
        place = Row(Ref("place", "p"), 1, {"status": "open"}, "north")
        store.upsert(tenant, [place])
        assert self.get(run, store, tenant, "n", "s", "none", scope="north").keys() == {"n"}
        assert self.get(run, store, tenant, "n", "s", "none").keys() == {"n", "s", "none"}
        assert self.get(run, store, tenant, "n", "s", scope="' OR '1'='1") == {}
        assert run(store.get_many(Caller(tenant, "north"), "place", ["p"]))["p"].scope == "north"
        assert run(store.get_many(Caller(tenant, "south"), "place", ["p"])) == {}

    def test_rows_are_found_by_indexed_columns(self, run: Loop, store: RowStore, tenant: str) -> None:
        rows = [row(f"r{i:02d}", title=f"t{i % 3}", amount=i, region="north" if i % 2 else None) for i in range(30)]
        store.upsert(tenant, rows)
        store.upsert(f"{tenant}-b", rows)
        store.delete(tenant, [Tombstone(Ref("item", "r01"), 2)])

        def found(raw: Mapping[str, object], limit: int = 100, scope: str | None = None) -> list[str]:
            where = parse_where(raw, {"item": conformance_registry().entity("item").filter_fields})
            assert where is not None
            return [one.ref.id for one in run(store.find(Caller(tenant, scope), "item", where, limit))]

        assert found({"title": "t1"}) == [f"r{i:02d}" for i in range(4, 30, 3)]
        assert found({"title": "t1"}, limit=2) == ["r04", "r07"]
        assert found({"title": "t1"}, scope="north") == ["r07", "r13", "r19", "r25"]
        assert found({"title": {"in": ["t0", "t2"]}, "amount": {"gte": 20, "lt": 24}}) == ["r20", "r21", "r23"]
        assert found({"or": [{"amount": 3}, {"amount": 5}, {"title": INJECTION}]}) == ["r03", "r05"]
        assert found({"amount": {"isnull": True}}) == []
        (whole,) = run(store.find(Caller(tenant), "item", Condition("amount", "int", "eq", 3), 9))
        assert whole == self.get(run, store, tenant, "r03")["r03"]

    def test_a_column_without_an_index_is_not_searched(self, run: Loop, store: RowStore, tenant: str) -> None:
        for condition in (
            Condition("status", "string", "eq", "open"),
            Condition("title", "string", "like", "a%"),
            Condition("title", "int", "eq", 1),
            Condition("no_such", "string", "eq", "x"),
        ):
            with pytest.raises(InvalidFilter, match=condition.field):
                run(store.find(Caller(tenant), "item", AllOf((condition,)), 1))

    def test_one_job_holds_a_tenant_at_a_time(self, store: RowStore, tenant: str) -> None:
        holder = rf"backfill.*{os.getpid()}.*{socket.gethostname()}"
        with store.lease(tenant, "backfill"), store.lease(f"{tenant}-b", "import"):
            second = store.lease(tenant, "import")
            with pytest.raises(Busy, match=holder):
                second.__enter__()
        with pytest.raises(RuntimeError, match="job failed"), store.lease(tenant, "import"):
            raise RuntimeError("job failed")
        with store.lease(tenant, "import"):
            pass

    def test_a_deadline_that_has_passed_is_a_transient_error(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row("a")])
        started = time.monotonic()
        with pytest.raises(TransientStoreError):
            run(store.get_many(Caller(tenant), "item", ["a"], timeout_s=0.0))
        with pytest.raises(TransientStoreError):
            run(store.count(tenant, timeout_s=0.0))
        assert time.monotonic() - started < 5
        assert self.get(run, store, tenant, "a")

    def test_many_readers_at_once_see_the_same(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row(f"r{i}") for i in range(20)])

        async def read() -> list[dict[str, Row]]:
            ids = [f"r{i}" for i in range(20)]
            return await asyncio.gather(*(store.get_many(Caller(tenant), "item", ids) for _ in range(32)))

        answers = run(read())
        assert all(answer == answers[0] for answer in answers)
        assert len(answers[0]) == 20

    def test_preparing_twice_keeps_every_row(self, run: Loop, store: RowStore, tenant: str) -> None:
        store.upsert(tenant, [row("a")])
        store.prepare()
        assert "a" in self.get(run, store, tenant, "a")

    def test_health_answers_and_closing_twice_is_closing_once(
        self, run: Loop, opener: Opener, context: PlaneContext
    ) -> None:
        another = opener(context)
        run(another.health(timeout_s=30))
        run(another.close())
        run(another.close())

    def _all(self, store: RowStore, tenant: str, size: int) -> list[Row]:
        return [r for page in store.pages(tenant, "item", size) for r in store.read_page(tenant, "item", page)]
