"""What every plane has to do with filters, scopes and neighbours in the same store: push them down, lose nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from recall.planes.conformance.corpus import FILTERS, corpus, parsed, random_filters
from recall.planes.conformance.data import INJECTION, Record, axis, item, unit_vector
from recall.planes.conformance.suite import Loop, new_tenant
from recall.planes.conformance.writing import PlaneSuite
from recall.planes.opening import PlaneContext
from recall.rows import Caller, Ref
from recall.where import Where, matches

CROWD = 10_000


def _shown(raw: object) -> str:
    return json.dumps(raw)[:60]


class FilterConformance(PlaneSuite):
    """Reads of two tenants that are loaded once per class: a corpus with every kind of value, and a crowd."""

    @pytest.fixture(scope="class")
    @classmethod
    def records(cls) -> Sequence[Record]:
        return corpus()

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls, store: Any, context: PlaneContext, records: Sequence[Record]) -> str:
        """Tenant that holds the corpus."""
        tenant = new_tenant()
        cls().write(store, context, tenant, records)
        return tenant

    @pytest.fixture(scope="class")
    @classmethod
    def crowded(cls, store: Any, context: PlaneContext) -> tuple[str, str]:
        """A tenant with one row, and one with 10,000 near copies of it and a single row in the scope `small`."""
        lonely, crowd = new_tenant(), new_tenant()
        same = item("same", title="same")
        copies = [Record(Ref("item", f"c{i:05d}"), vectors=_near(same, i), scope="big") for i in range(CROWD)]
        few = Record(Ref("item", "only"), values={"title": "only"}, scope="small")
        cls().write(store, context, crowd, [*copies, few])
        cls().write(store, context, lonely, [same])
        return lonely, crowd

    def _check(self, run: Loop, store: Any, tenant: str, records: Sequence[Record], where: Where | None) -> None:
        for entities in (("item",), ("place",), ("item", "place")):
            found = run(self.find(store, Caller(tenant), entities, where))
            expected = [r.ref for r in records if r.ref.entity in entities and matches(where, r.values)]
            assert len(found) == len(set(found))
            assert sorted(found) == sorted(expected)

    @pytest.mark.parametrize("raw", FILTERS, ids=_shown)
    def test_a_filter_returns_all_that_match(
        self,
        raw: Mapping[str, object],
        run: Loop,
        store: Any,
        context: PlaneContext,
        loaded: str,
        records: Sequence[Record],
    ) -> None:
        self._check(run, store, loaded, records, parsed(raw, context.registry))

    def test_random_filters_return_all_that_match(
        self, run: Loop, store: Any, context: PlaneContext, loaded: str, records: Sequence[Record]
    ) -> None:
        for raw in random_filters(records, 60):
            where = parsed(raw, context.registry, ["item"])
            found = run(self.find(store, Caller(loaded), ("item",), where))
            expected = [r.ref for r in records if r.ref.entity == "item" and matches(where, r.values)]
            assert sorted(found) == sorted(expected), raw

    def test_no_filter_finds_everything(self, run: Loop, store: Any, loaded: str, records: Sequence[Record]) -> None:
        self._check(run, store, loaded, records, None)

    def test_a_crafted_value_opens_no_other_tenant(
        self, run: Loop, store: Any, context: PlaneContext, loaded: str, crowded: tuple[str, str]
    ) -> None:
        for value in (INJECTION, "same' OR '1'='1", 'x" OR true //', "\\", "\\'"):
            where = parsed({"title": value}, context.registry, ["item"])
            assert run(self.find(store, Caller(crowded[0]), where=where)) == []
            assert run(self.find(store, Caller(crowded[0], value))) == []

    def test_a_scope_sees_its_own_rows_only(
        self, run: Loop, store: Any, context: PlaneContext, loaded: str, records: Sequence[Record]
    ) -> None:
        for scope in ("s0", "s3", "S0", ""):
            found = run(self.find(store, Caller(loaded, scope), ("item", "place")))
            assert sorted(found) == sorted(record.ref for record in records if record.scope == scope)
        where = parsed({"status": "open"}, context.registry)
        found = run(self.find(store, Caller(loaded, "s1"), ("item", "place"), where))
        assert sorted(found) == sorted(r.ref for r in records if r.scope == "s1" and r.values["status"] == "open")

    def test_one_row_is_found_beside_ten_thousand_of_another_tenant(
        self, run: Loop, store: Any, crowded: tuple[str, str]
    ) -> None:
        assert run(self.find(store, Caller(crowded[0]), limit=10)) == [Ref("item", "same")]

    def test_one_row_of_a_scope_or_a_value_is_found_beside_ten_thousand_others(
        self, run: Loop, store: Any, context: PlaneContext, crowded: tuple[str, str]
    ) -> None:
        assert run(self.find(store, Caller(crowded[1], "small"), limit=10)) == [Ref("item", "only")]
        where = parsed({"title": "only"}, context.registry, ["item"])
        assert run(self.find(store, Caller(crowded[1]), where=where, limit=10)) == [Ref("item", "only")]

    def test_count_tells_live_rows_by_entity(
        self, run: Loop, store: Any, loaded: str, records: Sequence[Record]
    ) -> None:
        count = run(store.count(loaded))
        assert count["item"] == sum(record.ref.entity == "item" for record in records)
        assert count["place"] >= sum(record.ref.entity == "place" for record in records)


def _near(record: Record, index: int) -> np.ndarray:
    """A vector close to the one that `record` gets by default."""
    vector = unit_vector(repr(record.ref)) + 0.001 * axis(index % 16) * (index / CROWD)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)[None, :]
