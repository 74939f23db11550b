"""`recall_fused`, mode `compat`: the published formula, its inputs and its edge cases (recall_fused semantics)."""

import math

import pytest
from fakes import CALLER
from world import World, load_world

from recall.errors import InvalidRequest, TransientStoreError
from recall.registry import Registry
from recall.rows import Caller, Ref, Row
from recall.tools import call_tool


def memory(id_: str, fact: str, links=(), mentions=(), **metadata) -> Row:
    values = {"id": id_, "fact": fact, "metadata": metadata, "links": list(links), "mentions": list(mentions)}
    return Row(Ref("memory", id_), 1, values)


def topic(id_: str) -> Row:
    return Row(Ref("topic", id_), 1, {"id": id_, "name": id_})


CHAIN = [
    memory("decision", "we chose the blue database", links=["change"], ts=20240105, project="veles"),
    memory("change", "migration rewrote every invoice", links=["problem"], ts=20240220, project="veles"),
    memory("problem", "customers saw wrong totals", ts="2024-03-01", project="other"),
    memory("near", "the blue database is fast", project="veles"),
    *[memory(f"noise{n}", f"unrelated thing number {n}") for n in range(40)],
]


@pytest.fixture
def world() -> World:
    return load_world(Registry({}), CHAIN)


async def fused(world: World, query: str, caller: Caller = CALLER, **changes) -> dict:
    return await call_tool(world.toolbox, "recall_fused", caller, {"query": query, **changes})


def by_id(answer: dict) -> dict[str, dict]:
    return {one["id"]: one for one in answer["memories"]}


async def test_score_is_the_published_formula(world):
    found = by_id(await fused(world, "we chose the blue database", limit=50))
    best = max(one["score"] for one in found.values())
    for one in found.values():
        weight = 1.0 if one["id"] in ("change", "problem") else 0.0
        assert math.isclose(one["fused_score"], max(one["score"], 0) / best + 0.15 * weight, abs_tol=1e-9)
    assert found["decision"]["fused_score"] == 1.0
    assert (found["change"]["hop"], found["problem"]["hop"]) == (1, 2)
    assert [step["ref"]["id"] for step in found["problem"]["path"]] == ["decision", "change", "problem"]
    assert "graph" in found["change"]["channels"]


async def test_order_is_by_fused_score(world):
    answer = await fused(world, "we chose the blue database", graph_boost=5, limit=3)
    assert {one["id"] for one in answer["memories"][:2]} == {"change", "problem"}


async def test_boost_zero_or_no_hops_switch_the_graph_off(world):
    for changes in ({"graph_boost": 0}, {"hops": 0}):
        assert all("hop" not in one for one in (await fused(world, "blue database", **changes))["memories"])


async def test_hub_weight_is_the_idf_of_its_mentions():
    rows = [memory("seed", "alpha beta gamma", mentions=["rare", "common"]), topic("rare"), topic("common")]
    rows += [memory("peer", "nothing alike", mentions=["rare", "common"])]
    rows += [memory(f"m{n}", f"filler {n}", mentions=["common"]) for n in range(18)]
    found = by_id(await fused(load_world(Registry({}), rows), "alpha beta gamma", limit=30, hops=2))
    boost = {name: one["fused_score"] - max(one["score"], 0) for name, one in found.items() if name != "seed"}
    n = 20
    assert math.isclose(boost["peer"], 0.15 * math.log(n / 2) / math.log(n), abs_tol=1e-6)
    assert math.isclose(boost["m3"], 0.0, abs_tol=1e-6)


async def test_blank_query_finds_nothing_without_an_error(world):
    assert (await fused(world, "  "))["memories"] == []
    assert (await fused(world, "", date_field="ts"))["dated_context"] == ""


async def test_filter_is_exact_and_type_strict(world):
    found = by_id(await fused(world, "blue database", filter={"project": "veles"}, limit=50))
    assert set(found) == {"decision", "change", "near"}
    assert (await fused(world, "blue database", filter={"ts": "20240105"}))["memories"] == []
    assert set(by_id(await fused(world, "blue database", filter={"ts": 20240105}))) == {"decision"}
    assert (await fused(world, "blue database", filter={"absent": None}))["memories"] == []


async def test_rare_filter_fills_the_whole_limit():
    rows = [memory(f"m{n:04}", f"shared words {n}", rare=n % 200 == 0) for n in range(1_000)]
    answer = await fused(load_world(Registry({}), rows), "shared words", filter={"rare": True}, limit=5)
    assert len(answer["memories"]) == 5


async def test_walk_does_not_pass_through_a_row_that_fails_the_filter():
    rows = [
        memory("a", "alpha beta", links=["b"], keep=1),
        memory("b", "middle row", links=["c"], keep=0),
        memory("c", "far away", keep=1),
        *[memory(f"n{i}", f"alpha {i}", keep=0) for i in range(5)],
    ]
    world = load_world(Registry({}), rows)
    assert by_id(await fused(world, "alpha beta", filter={"keep": 1}))["c"].get("hop") is None
    assert by_id(await fused(world, "alpha beta", filter={"keep": 1}, filter_scope="result"))["c"]["hop"] == 2


async def test_timeline_of_what_was_returned(world):
    answer = await fused(world, "we chose the blue database", graph_boost=5, limit=4, date_field="ts")
    lines = answer["dated_context"].split("\n")
    assert lines[:3] == [
        "- [2024-01-05] we chose the blue database",
        "- [2024-02-20] migration rewrote every invoice",
        "- [2024-03-01] customers saw wrong totals",
    ]
    assert lines[3].startswith("- the blue database")
    assert answer["now"] == "2024-03-01"
    assert answer["undated"] == 1
    assert "dated_context" not in await fused(world, "blue database")


@pytest.mark.parametrize(
    "changes",
    [{"limit": 0}, {"limit": 1001}, {"hops": 11}, {"hops": -1}, {"graph_boost": float("nan")},
     {"graph_boost": float("inf")}, {"mode": "best"}, {"colour": 1}, {"filter_scope": "x"}],
)  # fmt: skip
async def test_bad_input_names_the_field(world, changes):
    with pytest.raises(InvalidRequest, match=next(iter(changes))):
        await fused(world, "x", **changes)


async def test_failing_graph_is_reported_and_vector_hits_stay(world):
    async def broken(query):
        raise TransientStoreError("graph plane (Nebula)", "nebula:9669", "session lost")

    world.channels["graph"].walk = broken
    answer = await fused(world, "we chose the blue database")
    assert answer["memories"][0]["id"] == "decision"
    assert answer["degraded"][0]["code"] == "channel_failed"
    assert "nebula:9669" in answer["warnings"][0]


async def test_same_sentence_of_two_tenants_is_two_memories(world):
    world.load("other", [memory("decision", "we chose the blue database")])
    answer = await fused(world, "we chose the blue database", Caller("other"))
    assert [one["id"] for one in answer["memories"]] == ["decision"]
    assert len((await fused(world, "we chose the blue database", limit=50))["memories"]) > 1
