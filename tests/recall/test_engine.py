"""The engine over fake channels: fan-out, deadlines, degradation, hydration, packing (recall semantics §1–§7, §9)."""

import asyncio
import json

import pytest
from fakes import CALLER, MEASURED, FakeChannel, FakeEntities, FakeRows, registry, row

from recall.engine import Engine
from recall.errors import (
    AllChannelsFailed,
    ChannelError,
    DeadlineExceeded,
    IndexMissing,
    InvalidFilter,
    InvalidRequest,
    ModelMismatch,
    TransientStoreError,
    UnknownEntity,
)
from recall.options import RecallSettings
from recall.requests import RecallRequest, parse_request
from recall.results import PathStep
from recall.rows import Ref

A, B, C, D = (Ref("asset", id_) for id_ in "abcd")
SITE = Ref("site", "s")
ROWS = [row("asset", id_, name=f"pump {id_}", status="open" if id_ in "ab" else "done", site_id="s") for id_ in "abcd"]
ROWS.append(row("site", "s", name="north"))


def engine(rows: FakeRows | None = None, options: RecallSettings | None = None, **channels: FakeChannel) -> Engine:
    return Engine(registry(), channels, rows or FakeRows(*ROWS), options or RecallSettings())


def request(**changes: object) -> RecallRequest:
    return parse_request(RecallRequest, {"query": "hot pumps", "budget": 10_000, "entities": ["asset"], **changes})


async def test_item_of_two_channels_comes_first_with_both_sources():
    pack = await engine(vector=FakeChannel(A, B), search=FakeChannel(B, C), graph=FakeChannel()).recall(
        CALLER, request()
    )
    assert [item.id for item in pack.items] == ["b", "a", "c"]
    assert pack.items[0].source == ("search", "vector")
    assert pack.channels["vector"].candidates == 2
    assert pack.omitted == 0
    assert pack.tokens == sum(item.tokens for item in pack.items)
    assert pack.altitude == "entity"


async def test_graph_starts_from_the_fused_seeds_and_may_bring_other_entities():
    path = {SITE: (PathStep("", False, B), PathStep("LOCATED_AT", False, SITE))}
    graph = FakeChannel(SITE, paths=path)
    pack = await engine(vector=FakeChannel(A, B), search=FakeChannel(B), graph=graph).recall(
        CALLER, request(explain=True)
    )
    assert graph.queries[0].seeds == (B, A)
    site = next(item for item in pack.items if item.entity == "site")
    assert site.source == ("graph",)
    assert site.explain.path == path[SITE]
    for item in pack.items:
        assert sum(share.contribution for share in item.explain.contributions) == item.score


async def test_hops_zero_and_weight_zero_leave_a_channel_unasked():
    graph, search = FakeChannel(SITE), FakeChannel(C)
    await engine(vector=FakeChannel(A), search=search, graph=graph).recall(
        CALLER, request(hops=0, channels={"search": 0})
    )
    assert graph.queries == []
    assert search.queries == []


async def test_graph_alone_is_refused():
    with pytest.raises(InvalidRequest, match="vector or search"):
        await engine(vector=FakeChannel(A), search=FakeChannel(A), graph=FakeChannel()).recall(
            CALLER, request(channels={"vector": 0, "search": 0})
        )


async def test_stale_rows_never_appear_and_live_ones_take_their_place():
    ghosts = tuple(Ref("asset", f"ghost{n:02}") for n in range(20))
    vector = FakeChannel(*ghosts, A, B, C, D)
    pack = await engine(vector=vector, search=FakeChannel(), graph=FakeChannel()).recall(CALLER, request(k=4))
    assert [item.id for item in pack.items] == ["a", "b", "c", "d"]
    assert pack.dropped.stale == 20


async def test_rows_that_fail_the_filter_now_are_dropped_and_counted():
    vector = FakeChannel(C, A, B)
    pack = await engine(vector=vector, search=FakeChannel(), graph=FakeChannel()).recall(
        CALLER, request(filters={"status": "open"})
    )
    assert [item.id for item in pack.items] == ["a", "b"]
    assert pack.dropped.filtered == 1
    assert vector.queries[0].where is not None


async def test_failing_channel_is_reported_and_the_rest_goes_on():
    down = TransientStoreError("search plane (OpenSearch)", "http://os:9200", "connection refused")
    pack = await engine(vector=FakeChannel(A), search=FakeChannel(error=down), graph=FakeChannel(SITE)).recall(
        CALLER, request()
    )
    assert {item.id for item in pack.items} == {"a", "s"}
    assert [(one.channel, one.code) for one in pack.degraded] == [("search", "channel_failed")]
    assert "http://os:9200" in pack.warnings[0]
    assert pack.channels["search"].error == "channel_failed"


async def test_missing_embedder_is_one_warning_and_in_strict_mode_an_error():
    def channels() -> dict[str, FakeChannel]:
        missing = ChannelError("vector", "no_embedder", "embedder.kind is none")
        return {"vector": FakeChannel(error=missing), "search": FakeChannel(A), "graph": FakeChannel()}

    pack = await engine(**channels()).recall(CALLER, request())
    assert [item.id for item in pack.items] == ["a"]
    assert len(pack.warnings) == 1
    with pytest.raises(ChannelError, match="no_embedder"):
        await engine(options=RecallSettings(strict=True), **channels()).recall(CALLER, request())


async def test_unexpected_exception_of_a_channel_is_a_named_degradation(caplog):
    pack = await engine(vector=FakeChannel(error=ZeroDivisionError("oops")), search=FakeChannel(A)).recall(
        CALLER, request()
    )
    assert pack.degraded[0].code == "channel_failed"
    assert "ZeroDivisionError" in pack.degraded[0].detail
    assert "Traceback" in caplog.text


async def test_slow_channel_costs_its_own_deadline_only_and_is_cancelled():
    slow = FakeChannel(A, delay_s=30)
    options = RecallSettings(channel_timeout_ms=50)
    started = asyncio.get_running_loop().time()
    pack = await engine(options=options, vector=slow, search=FakeChannel(B), graph=FakeChannel()).recall(
        CALLER, request()
    )
    assert asyncio.get_running_loop().time() - started < 5
    assert [item.id for item in pack.items] == ["b"]
    assert pack.degraded[0].code == "channel_timeout"
    assert slow.cancelled == 1


async def test_request_deadline_bounds_everything():
    with pytest.raises(DeadlineExceeded):
        await engine(FakeRows(*ROWS, delay_s=30), vector=FakeChannel(A), search=FakeChannel(B)).recall(
            CALLER, request(timeout_ms=80)
        )
    with pytest.raises(AllChannelsFailed):
        await engine(vector=FakeChannel(delay_s=30), search=FakeChannel(delay_s=30)).recall(
            CALLER, request(timeout_ms=80)
        )


async def test_all_channels_failing_is_an_error_in_both_modes():
    def broken() -> FakeChannel:
        return FakeChannel(error=TransientStoreError("plane", "somewhere", "down"))

    for strict in (False, True):
        with pytest.raises(AllChannelsFailed, match="down"):
            await engine(options=RecallSettings(strict=strict), vector=broken(), search=broken()).recall(
                CALLER, request()
            )


async def test_a_tenant_without_any_index_is_told_to_backfill():
    def missing() -> FakeChannel:
        return FakeChannel(error=IndexMissing("vector plane (LanceDB)", "x", "run `recall backfill --tenant acme`"))

    with pytest.raises(IndexMissing, match="recall backfill"):
        await engine(vector=missing(), search=missing(), graph=missing()).recall(CALLER, request())


async def test_model_mismatch_is_named_never_silently_empty():
    wrong = ModelMismatch("m1 (768 dimensions)", "m2 (384 dimensions)", "vectors")
    pack = await engine(vector=FakeChannel(error=wrong), search=FakeChannel(A)).recall(CALLER, request())
    assert pack.degraded[0].code == "model_mismatch"
    assert "m1 (768 dimensions)" in pack.warnings[0]
    assert "m2 (384 dimensions)" in pack.warnings[0]


async def test_failed_hydration_of_one_entity_is_reported_of_all_raised():
    class HalfRows(FakeRows):
        async def get_many(self, caller, entity, ids, *, timeout_s=None):
            if entity == "asset":
                raise TransientStoreError("rows (SQLite)", "rows.sqlite", "locked")
            return await super().get_many(caller, entity, ids, timeout_s=timeout_s)

    pack = await engine(HalfRows(*ROWS), vector=FakeChannel(A), search=FakeChannel(A), graph=FakeChannel(SITE)).recall(
        CALLER, request()
    )
    assert [item.id for item in pack.items] == ["s"]
    assert [one.code for one in pack.degraded] == ["hydrate_failed"]
    with pytest.raises(TransientStoreError):
        await engine(HalfRows(*ROWS), vector=FakeChannel(A), search=FakeChannel(A)).recall(CALLER, request())


async def test_rows_are_read_while_the_graph_is_walked():
    read = asyncio.Event()

    class Rows(FakeRows):
        async def get_many(self, caller, entity, ids, *, timeout_s=None):
            read.set()
            return await super().get_many(caller, entity, ids, timeout_s=timeout_s)

    class Graph(FakeChannel):
        async def search(self, query):
            await read.wait()
            return await super().search(query)

    subject = engine(Rows(*ROWS), vector=FakeChannel(A), search=FakeChannel(B), graph=Graph(SITE))
    pack = await subject.recall(CALLER, request(timeout_ms=2000))
    assert (len(pack.items), pack.degraded) == (3, ())


async def test_every_row_is_read_once_however_deep_the_channels_are_asked():
    ghosts = tuple(Ref("asset", f"ghost{n:02}") for n in range(20))
    rows = FakeRows(*ROWS)
    graph = FakeChannel(A, SITE)
    await engine(rows, vector=FakeChannel(*ghosts, A, B), search=FakeChannel(B), graph=graph).recall(
        CALLER, request(k=4)
    )
    assert len(graph.queries) > 1
    assert sum(count for _, count in rows.calls) == len({*ghosts, A, B, SITE})


async def test_rows_behind_a_hop_are_read_in_one_call_for_all_entities():
    rows = FakeEntities(*ROWS)
    subject = engine(rows, vector=FakeChannel(A, SITE), search=FakeChannel(B), graph=FakeChannel(SITE, C))
    pack = await subject.recall(CALLER, request(entities=["asset", "site"]))
    assert rows.hops == [{"asset": 2, "site": 1}, {"asset": 1}]
    assert {item.id for item in pack.items} == {"a", "b", "c", "s"}


async def test_hop_that_fails_is_the_failure_of_all_that_was_asked_for():
    rows = FakeEntities(*ROWS, error=TransientStoreError("rows (Ray Serve)", "deployment Rows", "no replica"))
    with pytest.raises(TransientStoreError, match="no replica"):
        await engine(rows, vector=FakeChannel(A), search=FakeChannel(A), graph=FakeChannel(SITE)).recall(
            CALLER, request()
        )


async def test_request_that_the_graph_refuses_stops_the_reading_of_rows():
    rows = FakeRows(*ROWS, delay_s=30)
    graph = FakeChannel(error=InvalidRequest("too many seeds"))
    with pytest.raises(InvalidRequest, match="too many seeds"):
        await engine(rows, vector=FakeChannel(A), search=FakeChannel(A), graph=graph).recall(CALLER, request())


async def test_only_what_packing_looks_at_is_measured():
    subject = engine(
        vector=FakeChannel(A, B, C, D), search=FakeChannel(), options=RecallSettings(tokenizer="fakes:measure")
    )
    MEASURED.clear()
    pack = await subject.recall(CALLER, request(budget=120))
    assert ([item.id for item in pack.items], pack.tokens, pack.omitted) == (["a", "b"], 100, 2)
    assert [json.loads(payload)["id"] for payload in MEASURED] == ["a", "b", "c"]


async def test_time_of_a_channel_does_not_depend_on_the_clock_of_the_loop(monkeypatch):
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1.0)
    pack = await engine(vector=FakeChannel(A), search=FakeChannel(A)).recall(CALLER, request())
    assert pack.channels["vector"].ms > 0


async def test_truncated_graph_is_reported():
    pack = await engine(vector=FakeChannel(A), search=FakeChannel(A), graph=FakeChannel(SITE, truncated=True)).recall(
        CALLER, request()
    )
    assert [one.code for one in pack.degraded] == ["graph_truncated"]
    assert pack.channels["graph"].truncated


async def test_budget_cuts_in_order_and_counts_what_is_left():
    full = await engine(vector=FakeChannel(A, B, C), search=FakeChannel()).recall(CALLER, request())
    budget = full.items[0].tokens + full.items[1].tokens
    pack = await engine(vector=FakeChannel(A, B, C), search=FakeChannel()).recall(CALLER, request(budget=budget))
    assert [item.id for item in pack.items] == ["a", "b"]
    assert (pack.omitted, pack.tokens) == (1, budget)
    tiny = await engine(vector=FakeChannel(A, B, C), search=FakeChannel()).recall(CALLER, request(budget=1))
    assert (tiny.items, tiny.omitted, tiny.tokens) == ((), 3, 0)


async def test_pack_fields_project_the_row():
    rows = FakeRows(row("note", "n", text="hello", private="hidden"))
    pack = await engine(rows, vector=FakeChannel(Ref("note", "n")), search=FakeChannel()).recall(
        CALLER, request(entities=["note"])
    )
    assert pack.items[0].row == {"text": "hello"}


@pytest.mark.parametrize("altitude", ["scope", "tenant", "mixed"])
async def test_altitudes_without_digests_fall_back_to_rows_and_say_so(altitude):
    pack = await engine(vector=FakeChannel(A), search=FakeChannel()).recall(CALLER, request(altitude=altitude))
    assert [item.id for item in pack.items] == ["a"]
    assert pack.altitude == "entity"
    assert [one.code for one in pack.degraded] == ["no_digests"]


@pytest.mark.parametrize(
    "changes",
    [
        {"query": "   "},
        {"query": ""},
        {"budget": 0},
        {"budget": -5},
        {"budget": "100"},
        {"budget": 1.5},
        {"entities": []},
        {"k": 0},
        {"k": 1001},
        {"hops": 6},
        {"hops": -1},
        {"channels": {"vector": -1}},
        {"channels": {"vector": float("nan")}},
        {"channels": {"colour": 1}},
        {"fusion": "best"},
        {"packer": "all"},
        {"tenant": "other"},
        {"altitude": "orbit"},
    ],
)
async def test_bad_requests_name_the_field_before_any_store_call(changes):
    with pytest.raises(InvalidRequest, match=next(iter(changes))):
        request(**changes)


async def test_unknown_entity_and_bad_filters_stop_before_any_store_call():
    vector = FakeChannel(A)
    one = engine(vector=vector, search=FakeChannel())
    with pytest.raises(UnknownEntity, match=r"'pump'.*asset"):
        await one.recall(CALLER, request(entities=["pump"]))
    for filters in ({"colour": 1}, {"name": "x"}, {"status": 3}, {"status": {"in": []}}, {"status": {"almost": "x"}}):
        with pytest.raises(InvalidFilter, match=next(iter(filters))):
            await one.recall(CALLER, request(filters=filters))
    assert vector.queries == []


async def test_duplicate_entities_collapse():
    vector = FakeChannel(A)
    await engine(vector=vector, search=FakeChannel()).recall(CALLER, request(entities=["asset", "asset"], k=10))
    assert vector.queries[0].entities == ("asset",)
    assert vector.queries[0].limit == 10


async def test_answer_does_not_change_with_channel_order():
    def parts() -> dict[str, FakeChannel]:
        return {"vector": FakeChannel(A, B, C), "search": FakeChannel(C, D), "graph": FakeChannel(SITE)}

    one = await engine(**parts()).recall(CALLER, request(), request_id="x")
    other = await engine(**dict(reversed(parts().items()))).recall(CALLER, request(), request_id="x")
    assert one.items == other.items
