"""`recall` end to end over planes in memory: the edge cases of the semantics (§8, §9) and public bug reports."""

import pytest
from fakes import CALLER, registry, row
from world import World, load_world

from recall.errors import Forbidden, IndexMissing, InvalidRequest, NotFound
from recall.options import GraphLimits, RecallSettings
from recall.registry import Registry
from recall.rows import Caller, Ref, Row, Tombstone
from recall.tools import TOOLS, call_tool

ASSETS = [
    row("site", "north", name="north yard"),
    row("site", "south", name="south yard"),
    row("asset", "p1", name="cooling pump overheats", status="open", site_id="north"),
    row("asset", "p2", name="feed pump leaks", status="done", site_id="south"),
    row("asset", "f1", name="exhaust fan vibrates", status="open", site_id="north"),
    row("note", "n1", text="the fox code E-4711 was seen", private="x"),
]


@pytest.fixture
def world() -> World:
    return load_world(registry(), ASSETS)


async def ask(world: World, tool: str, body: dict, caller: Caller = CALLER) -> dict:
    return await call_tool(world.toolbox, tool, caller, body)


async def recall(world: World, query: str, caller: Caller = CALLER, **changes) -> dict:
    body = {"query": query, "budget": 10_000, "entities": ["asset"], **changes}
    return await ask(world, "recall", body, caller)


def ids(pack: dict) -> list[str]:
    return [f"{item['entity']}:{item['id']}" for item in pack["items"]]


async def test_graph_brings_the_site_though_only_assets_were_asked_for(world):
    pack = await recall(world, "cooling pump overheats", k=1)
    site = next(item for item in pack["items"] if item["entity"] == "site")
    assert site["id"] == "north"
    assert site["source"] == ["graph"]


@pytest.mark.parametrize(("reverse", "found"), [(False, False), (True, True)])
async def test_incoming_edges_are_followed_only_when_asked(reverse, found):
    options = RecallSettings(graph=GraphLimits(reverse=reverse))
    world = load_world(registry(), ASSETS, options=options)
    pack = await recall(world, "south yard", entities=["site"], k=1)
    assert ("asset:p2" in ids(pack)) is found


async def test_two_hops_mix_relations():
    chain = Registry.parse(
        {
            "entities": {
                "a": {
                    "columns": {"t": "string", "b": "string"},
                    "search": {"fields": ["t"]},
                    "edges": [{"field": "b", "rel": "R1", "target": "b"}],
                },
                "b": {"columns": {"t": "string", "c": "string"}, "edges": [{"field": "c", "rel": "R2", "target": "c"}]},
                "c": {"columns": {"t": "string"}},
            }
        }
    )
    rows = [row("a", "1", t="start", b="2"), row("b", "2", t="middle", c="3"), row("c", "3", t="end")]
    world = load_world(chain, rows)
    body = {"query": "start", "entities": ["a"], "channels": {"vector": 0}, "explain": True}
    assert ids(await recall(world, **body, hops=1)) == ["a:1", "b:2"]
    two = await recall(world, **body, hops=2)
    assert ids(two) == ["a:1", "b:2", "c:3"]
    assert [step["rel"] for step in two["items"][2]["explain"]["path"]] == ["", "R1", "R2"]


async def test_hub_with_many_neighbours_answers_and_says_it_was_cut():
    people = Registry.parse(
        {
            "entities": {
                "hub": {
                    "columns": {"t": "string", "links": "strings"},
                    "search": {"fields": ["t"]},
                    "edges": [{"field": "links", "rel": "L", "target": "leaf"}],
                },
                "leaf": {"columns": {"t": "string"}},
            }
        }
    )
    leaves = [row("leaf", f"l{n:05}", t="x") for n in range(10_000)]
    world = load_world(people, [row("hub", "h", t="hub", links=[leaf.ref.id for leaf in leaves]), *leaves])
    pack = await recall(world, "hub", entities=["hub"], channels={"vector": 0}, k=100)
    assert [one["code"] for one in pack["degraded"]] == ["graph_truncated"]
    assert pack["channels"]["graph"]["candidates"] == 64


async def test_deleted_row_that_is_still_indexed_never_appears_and_others_fill_its_place(world):
    world.load("acme", [row("asset", f"d{n}", name="cooling pump overheats", status="open") for n in range(20)])
    world.planes.rows.delete("acme", [Tombstone(Ref("asset", f"d{n}"), 9) for n in range(20)])
    for tool, body in (("vector_similar", {"k": 3}), ("search", {"limit": 3})):
        hits = await ask(world, tool, {"entity": "asset", "query": "pump overheats leaks fan", **body})
        assert len(hits["hits"]) == 3
        assert not any(hit["id"].startswith("d") for hit in hits["hits"])
    pack = await recall(world, "cooling pump overheats leaks fan", k=3)
    assert {"asset:p1", "asset:p2", "asset:f1"} <= set(ids(pack))
    assert pack["dropped"]["stale"] >= 20


async def test_flag_flipped_in_the_source_is_never_shown_under_the_old_filter(world):
    stale = [Row(Ref("asset", "p1"), 2, {"id": "p1", "name": "cooling pump overheats", "status": "done"})]
    world.planes.rows.upsert("acme", stale)
    pack = await recall(world, "cooling pump", filters={"status": "open"})
    assert "asset:p1" not in ids(pack)
    assert pack["dropped"]["filtered"] >= 1


async def test_same_text_under_five_ids_is_five_refs():
    copies = [row("asset", f"c{n}", name="identical words") for n in range(5)]
    pack = await recall(load_world(registry(), copies), "identical words", hops=0)
    assert ids(pack) == [f"asset:c{n}" for n in range(5)]


async def test_pages_of_thirty_identical_texts_never_overlap():
    world = load_world(registry(), [row("asset", f"c{n:02}", name="identical words") for n in range(30)])
    pages = [
        await ask(world, "search", {"entity": "asset", "query": "identical", "limit": 10, "offset": start})
        for start in (0, 10, 20, 30)
    ]
    assert [[hit["rank"] for hit in page["hits"]] for page in pages[:2]] == [list(range(1, 11)), list(range(11, 21))]
    assert [hit["id"] for page in pages for hit in page["hits"]] == [f"c{n:02}" for n in range(30)]


@pytest.mark.parametrize(
    "query",
    ["🙂🙂", "the of and", "word " * 5_000, "A OR (B AND", 'foo-bar:("', "<|endoftext|>", "a\0b", "\ud800x", "?", "`"],
    ids=lambda query: repr(query[:12]),
)
async def test_odd_queries_have_defined_answers(world, query):
    pack = await recall(world, query)
    assert pack["tokens"] <= 10_000
    await ask(world, "search", {"entity": "asset", "query": query})


async def test_rare_exact_term_is_among_the_first(world):
    pack = await recall(world, "fox", entities=["asset", "note"])
    assert "note:n1" in ids(pack)[:3]


AWKWARD = [
    "it's",
    'say "hi"',
    "trailing\\",
    "line1\nline2",
    "系" * 100,
    "x" * 300,
    "a|b",
    "main",
    "认证",
    "') or true or ('",
]


async def test_awkward_ids_come_back_unchanged():
    world = load_world(registry(), [row("asset", id_, name="shared words") for id_ in AWKWARD])
    assert sorted(item["id"] for item in (await recall(world, "shared words"))["items"]) == sorted(AWKWARD)
    for id_ in AWKWARD:
        assert (await ask(world, "get", {"entity": "asset", "id": id_}))["id"] == id_


EVERY_CALL = [
    ("recall", {"query": "cooling pump overheats", "budget": 9_000, "entities": ["asset", "site"]}),
    ("recall_fused", {"query": "cooling pump overheats", "entity": "asset"}),
    ("vector_similar", {"entity": "asset", "query": "cooling pump overheats"}),
    ("search", {"entity": "asset", "query": "cooling pump overheats"}),
    ("graph_traverse", {"query": "MATCH (n:asset) RETURN n.id"}),
]


@pytest.mark.parametrize(("tool", "body"), EVERY_CALL, ids=[name for name, _ in EVERY_CALL])
async def test_no_tool_shows_another_tenants_rows(world, tool, body):
    other = Caller("other")
    with pytest.raises((IndexMissing, Forbidden)):
        await ask(world, tool, body, other)
    world.load("other", [row("asset", "p1", name="their own row", status="open", site_id="north")])
    try:
        answer = str(await ask(world, tool, body, other))
    except Forbidden:
        return
    assert "cooling" not in answer
    assert "north yard" not in answer


async def test_get_of_another_tenants_row_is_not_found(world):
    with pytest.raises(NotFound):
        await ask(world, "get", {"entity": "asset", "id": "p1"}, Caller("other"))


@pytest.mark.parametrize("tool", list(TOOLS))
async def test_tenant_in_the_body_is_an_unknown_field(world, tool):
    with pytest.raises(InvalidRequest, match="tenant"):
        await ask(world, tool, {"tenant": "other"})


async def test_matched_text_is_the_chunk_that_was_found(world):
    hits = await ask(world, "vector_similar", {"entity": "note", "query": "fox code"})
    assert hits["hits"][0]["matched"]["text"] == "the fox code E-4711 was seen"


async def test_search_highlights_what_matched(world):
    hits = await ask(world, "search", {"entity": "asset", "query": "leaking pumps"})
    assert "<em>" in hits["hits"][0]["highlights"][0]


async def test_unknown_tool_names_the_known_ones(world):
    with pytest.raises(NotFound, match="vector_similar"):
        await ask(world, "reboot", {})
