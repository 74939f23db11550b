"""Altitude: what stands for what, and never both (recall semantics §5)."""

from dataclasses import dataclass

import pytest
from fakes import CALLER, FakeChannel, FakeEntities
from hypothesis import given
from hypothesis import strategies as st
from world import load_world

from recall.altitude import Entry, Tree, choose
from recall.digest.hashes import text_hash
from recall.digest.nodes import DIGEST, TENANT_NODE, Node, entity_node, parent_of_part, scope_node
from recall.engine import Engine
from recall.options import RecallSettings
from recall.registry import Registry
from recall.requests import RecallRequest
from recall.rows import Ref, Row
from recall.tools import call_tool

NORTH, SOUTH, CLUSTER = "digest:1:scope:site:north", "digest:1:scope:site:south", "digest:1:cluster:00:1"
ROWS = [Entry(Ref("note", str(n)), 1.0 - n / 100) for n in range(6)]


@dataclass(frozen=True)
class Sizes:
    """One size for each kind of candidate."""

    row: int = 100
    level1: int = 40
    root: int = 30
    leaf: int = 20

    def __getitem__(self, ref: Ref, /) -> int:
        if ref.entity != DIGEST:
            return self.row
        if ref.id == TENANT_NODE:
            return self.root
        return self.leaf if ref.id.startswith("digest:0:") else self.level1


def tree() -> Tree:
    """Rows 0–2 in the north, 3–4 in the south, 5 uncovered; 0 and 3 in one cluster."""
    parents = {ROWS[n].ref: (NORTH,) if n < 3 else (SOUTH,) for n in range(5)}
    for n in (0, 3):
        parents[ROWS[n].ref] += (CLUSTER,)
    leaves = {ref: entity_node(ref) for ref in parents}
    return Tree(parents, {NORTH, SOUTH, CLUSTER}, leaves, {node: ref for ref, node in leaves.items()}, True)


def names(chosen) -> list[str]:
    return [entry.ref.id for entry in chosen.entries]


def test_scope_puts_parents_in_the_order_of_their_best_candidate():
    chosen = choose("scope", ROWS, tree(), Sizes(), 1)
    assert names(chosen) == [NORTH, CLUSTER, SOUTH, "5"]
    assert chosen.covered == 5


def test_tenant_is_the_root_and_what_it_does_not_cover():
    assert names(choose("tenant", ROWS, tree(), Sizes(), 1)) == [TENANT_NODE, "5"]


@pytest.mark.parametrize(
    ("budget", "altitude", "level1"),
    [(600, "entity", 40), (599, "scope", 40), (220, "scope", 40), (219, "tenant", 40), (5, "tenant", 40)],
)
def test_auto_takes_the_lowest_layer_that_fits(budget, altitude, level1):
    assert choose("auto", ROWS, tree(), Sizes(level1=level1), budget).altitude == altitude


def test_digest_hits_point_to_their_level1_nodes():
    hits = [Entry(Ref(DIGEST, NORTH + "#1.010"), 1.0), Entry(Ref(DIGEST, entity_node(ROWS[3].ref)), 0.9)]
    assert names(choose("scope", hits, tree(), Sizes(), 100)) == [NORTH, SOUTH, CLUSTER]


def test_mixed_keeps_top_rows_and_one_digest_for_the_rest():
    # Three rows fill 300; the south's digest fits beside them and stands for both of its rows.
    chosen = choose("mixed", ROWS, tree(), Sizes(), 345)
    assert names(chosen) == ["0", "1", "2", SOUTH]
    assert chosen.covered == 2


def test_mixed_falls_back_to_the_rows_own_digest_when_its_parents_cover_a_kept_row():
    assert names(choose("mixed", ROWS[:3], tree(), Sizes(), 150)) == [
        "0",
        entity_node(ROWS[1].ref),
        entity_node(ROWS[2].ref),
    ]


def test_mixed_gives_rows_half_of_a_budget_that_cannot_hold_a_digest_per_parent():
    parents = {row.ref: (f"digest:1:scope:x:{at}",) for at, row in enumerate(ROWS)}
    bare = Tree(parents, {node for (node,) in parents.values()})
    large, small = Sizes(level1=300), Sizes(level1=60)
    assert names(choose("mixed", ROWS, bare, large, 299)) == ["0", "1"]
    found = names(choose("mixed", ROWS, bare, small, 270))
    assert found[:1] == ["0"]
    assert any(name.startswith("digest:") for name in found)


@pytest.mark.parametrize("altitude", ["scope", "tenant", "mixed"])
def test_without_digests_rows_answer_and_it_is_said(altitude):
    chosen = choose(altitude, ROWS, Tree(), Sizes(), 100)
    assert (chosen.altitude, chosen.degraded.code) == ("entity", "no_digests")
    assert choose("auto", ROWS, Tree(), Sizes(), 100).degraded is None


nodes = st.sampled_from([NORTH, SOUTH, CLUSTER, "digest:1:scope:x:1", "digest:1:cluster:11:2"])
random_trees = st.builds(
    lambda parents, root: Tree(
        {ref: tuple(dict.fromkeys(found)) for ref, found in parents.items()},
        {node for found in parents.values() for node in found},
        {ref: entity_node(ref) for ref in parents},
        {entity_node(ref): ref for ref in parents},
        root,
    ),
    st.dictionaries(st.sampled_from([row.ref for row in ROWS]), st.lists(nodes, max_size=3)),
    st.booleans(),
)
random_sizes = st.builds(Sizes, level1=st.integers(1, 300), root=st.integers(1, 300), leaf=st.integers(1, 150))


@given(random_trees, random_sizes, st.sampled_from(["auto", "entity", "scope", "tenant", "mixed"]), st.integers(1, 900))
def test_a_row_and_a_digest_that_covers_it_are_never_both_chosen(found, sizes, altitude, budget):
    chosen = choose(altitude, ROWS, found, sizes, budget)
    rows = [entry.ref for entry in chosen.entries if entry.ref.entity != DIGEST]
    digests = {entry.ref.id for entry in chosen.entries if entry.ref.entity == DIGEST}
    assert len(set(names(chosen))) == len(chosen.entries)
    for ref in rows:
        assert not digests & set(found.level1_of(ref))
        assert entity_node(ref) not in digests
        assert not (TENANT_NODE in digests and ref in found.parents)


@given(random_trees, random_sizes, st.integers(1, 900))
def test_mixed_never_exceeds_the_budget_and_represents_no_row_twice(found, sizes, budget):
    chosen = choose("mixed", ROWS, found, sizes, budget)
    if chosen.altitude == "mixed":
        assert sum(sizes[entry.ref] for entry in chosen.entries) <= budget
        digests = {entry.ref.id for entry in chosen.entries if entry.ref.entity == DIGEST}
        for row in ROWS:
            assert len(digests & ({*found.level1_of(row.ref), entity_node(row.ref)})) <= 1


@pytest.mark.parametrize(
    ("id_", "parent"),
    [
        ("digest:2:tenant#1.0101", "digest:2:tenant"),
        ("digest:1:scope:tag:c#", "digest:1:scope:tag:c#"),
        ("digest:1:scope:tag:c##2.1", "digest:1:scope:tag:c#"),
        ("digest:1:scope:tag:a#b", "digest:1:scope:tag:a#b"),
        ("digest:2:tenant#1.", "digest:2:tenant"),
    ],
)
def test_part_ids_lead_to_their_node(id_, parent):
    assert parent_of_part(id_) == parent


# ---- through the engine --------------------------------------------------------------------------------------------


def digest(id_: str, level: int, kind: str, summary: str, parents=(), source: Ref | None = None) -> Row:
    node = Node(
        id_, level, kind, summary, text_hash(summary), "h", "i", "0" * 16, (), tuple(parents), 9, "r", source=source
    )
    return node.row(1, "2026-01-01T00:00:00.000000Z")


def distilled_world():
    registry = Registry.parse(
        {
            "entities": {
                "note": {
                    "columns": {"text": "string", "site": {"type": "string", "filterable": True}},
                    "search": {"fields": ["text"]},
                    "embed": {"fields": ["text"]},
                    "distill": {"fields": ["text"], "scopes": ["site"]},
                }
            }
        }
    )
    notes = [
        Row(Ref("note", str(n)), 1, {"id": str(n), "text": f"pump report {n} " + "detail " * 40, "site": "north"})
        for n in range(5)
    ]
    north = scope_node("site", "north")
    leaves = [
        digest(entity_node(note.ref), 0, "entity", f"pump {note.ref.id}", [north], source=note.ref) for note in notes
    ]
    above = [digest(north, 1, "scope", "the north reports pumps", [TENANT_NODE])]
    above.append(digest(TENANT_NODE, 2, "tenant", "everything is about pumps"))
    return load_world(registry, [*notes, *leaves, *above])


async def ask(world, **changes):
    body = {"query": "pump report", "budget": 10_000, "entities": ["note"], "hops": 0, **changes}
    return await call_tool(world.toolbox, "recall", CALLER, body)


async def test_tight_budget_climbs_and_generous_budget_descends():
    world = distilled_world()
    full = await ask(world)
    assert (full["altitude"], len(full["items"])) == ("entity", 5)
    tight = await ask(world, budget=100)
    assert tight["altitude"] == "scope"
    assert [item["row"]["summary"] for item in tight["items"]] == ["the north reports pumps"]
    assert tight["dropped"]["covered"] == 5
    top = await ask(world, altitude="tenant")
    assert [item["id"] for item in top["items"]] == [TENANT_NODE]
    assert all(item["entity"] == "note" for item in (await ask(world, altitude="entity"))["items"])


@pytest.mark.parametrize("altitude", ["auto", "scope"])
async def test_digests_above_the_rows_come_in_the_call_that_reads_the_last_rows(altitude):
    world = distilled_world()
    rows = FakeEntities()
    rows.get_many = world.planes.rows.get_many
    notes = [Ref("note", str(n)) for n in range(5)]
    channels = {"vector": FakeChannel(*notes[:4]), "graph": FakeChannel(notes[4])}
    engine = Engine(world.registry, channels, rows, RecallSettings())
    pack = await engine.recall(
        CALLER, RecallRequest(query="pump report", budget=100, entities=["note"], altitude=altitude)
    )
    assert [item.row["summary"] for item in pack.items] == ["the north reports pumps"]
    leaves_and_root = 6
    assert rows.hops == [{"note": 4}, {"note": 1, "digest": leaves_and_root}, {"digest": 1}]


async def test_root_larger_than_the_budget_is_an_empty_pack_that_counts_it():
    pack = await ask(distilled_world(), budget=2)
    assert (pack["altitude"], pack["items"], pack["omitted"]) == ("tenant", [], 1)


async def test_a_tenant_without_digests_falls_back():
    world = distilled_world()
    registry = world.registry
    bare = load_world(registry, [Row(Ref("note", "1"), 1, {"id": "1", "text": "pump report", "site": "north"})])
    pack = await ask(bare, altitude="mixed")
    assert pack["degraded"][0]["code"] == "no_digests"
    assert [item["id"] for item in pack["items"]] == ["1"]
