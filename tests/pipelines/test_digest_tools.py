"""`map`, `digest` and `resolve` over a distilled tenant: what they say, what they read, who sees what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from digesting import Digested, note, words

from recall.digest.hashes import hamming
from recall.errors import InvalidRequest, NotFound
from recall.options import RecallSettings
from recall.registry import Registry
from recall.rows import Caller, Row
from recall.tools import Toolbox, call_tool
from recall.where import Where


class CountedRows:
    """A row reader that counts the rows it hands out."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.read = 0
        self.searches = 0

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, Row]:
        rows = await self._store.get_many(caller, entity, ids, timeout_s=timeout_s)
        self.read += len(rows)
        return rows

    async def find(
        self, caller: Caller, entity: str, where: Where, limit: int, *, timeout_s: float | None = None
    ) -> list[Row]:
        self.searches += 1
        return await self._store.find(caller, entity, where, limit, timeout_s=timeout_s)


class Tools:
    def __init__(self, tenant: Digested) -> None:
        self.tenant = tenant
        self.store = tenant.store()
        self.rows = CountedRows(self.store)
        self._box = Toolbox(tenant.registry, {}, self.rows, RecallSettings(timeout_ms=60_000))

    def __call__(self, name: str, seen_by: str | None = None, tenant: str | None = None, **body: Any) -> dict[str, Any]:
        caller = Caller(tenant or self.tenant.name, seen_by)
        return asyncio.run(call_tool(self._box, name, caller, body))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Digested:
    tenant = Digested(tmp_path_factory.mktemp("tools"))
    tenant.put(*(note(i, topic=f"t{i % 3}", team="red" if i % 3 == 0 else "blue") for i in range(60)))
    tenant.run()
    return tenant


@pytest.fixture
def tools(built: Digested) -> Iterator[Tools]:
    made = Tools(built)
    yield made
    asyncio.run(made.store.close())


def test_map_lists_every_node_once_from_the_top(tools: Tools) -> None:
    tree = tools.tenant.tree()
    answer = tools("map")
    assert {line["id"] for line in answer["nodes"]} == tree.keys()
    assert len(answer["nodes"]) == len(tree)
    assert answer["nodes"][0]["id"] == "digest:2:tenant"
    for line in answer["nodes"]:
        assert (line["content_hash"], line["sem_hash"]) == (
            tree[line["id"]]["content_hash"],
            tree[line["id"]]["sem_hash"],
        )
    assert {line["scope"] for line in answer["nodes"] if line["kind"] == "scope"} == {f"topic:t{n}" for n in range(3)}


def test_map_is_cut_where_it_is_told_to_be(tools: Tools) -> None:
    answer = tools("map", limit=5)
    assert len(answer["nodes"]) == 5
    assert answer["truncated"]
    assert answer["nodes"] == tools("map")["nodes"][:5]


def test_a_map_with_known_hashes_costs_what_changed(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i, topic=f"t{i % 3}") for i in range(60)))
    tenant.run()
    tools = Tools(tenant)
    known = [line["content_hash"] for line in tools("map")["nodes"]]
    whole = tools.rows.read
    tools.rows.read = 0
    answer = tools("map", known_hashes=known)
    assert [(line["id"], line["unchanged"]) for line in answer["nodes"]] == [("digest:2:tenant", True)]
    assert tools.rows.read == 1
    tenant.put(note(7, f"now {words('now', 30)}", 2, topic="t1"))
    tenant.run()
    tools.rows.read = 0
    changed = tools("map", known_hashes=known)["nodes"]
    new = {line["id"] for line in changed if not line["unchanged"]}
    tree = tenant.tree()
    assert new == {node for node, one in tree.items() if one["content_hash"] not in known}
    assert "digest:0:note:7" in new
    # Children are read of changed nodes only.
    assert len(changed) <= tools.rows.read <= 1 + 4 * len(new) < whole
    asyncio.run(tools.store.close())


def test_map_of_a_scope_by_value_name_or_id(tools: Tools) -> None:
    by_value = tools("map", scope="t1")
    assert by_value == tools("map", scope="topic:t1") == tools("map", scope="digest:1:scope:topic:t1")
    rows = {line["id"] for line in by_value["nodes"] if line["level"] == 0}
    assert rows == {f"digest:0:note:{i}" for i in range(60) if i % 3 == 1}
    with pytest.raises(NotFound, match="no such scope"):
        tools("map", scope="no such scope")


def test_digest_shows_children_and_the_way_up(tools: Tools) -> None:
    answer = tools("digest", node_id="digest:1:scope:topic:t1", rows=100)
    tree = tools.tenant.tree()
    own = tree["digest:1:scope:topic:t1"]
    assert answer["summary"] == own["summary"]
    assert [child["id"] for child in answer["children"]] == own["child_ids"]
    assert all(child["summary"] == tree[child["id"]]["summary"] for child in answer["children"])
    assert [child["id"] for child in answer["children"] if child["cited"]] == own["cited_ids"]
    assert [parent["id"] for parent in answer["parents"]] == ["digest:2:tenant"]
    assert [row["id"] for row in answer["rows"]] == [str(i) for i in range(60) if i % 3 == 1]
    leaf = tools("digest", node_id="digest:0:note:4")
    assert {parent["id"] for parent in leaf["parents"]} >= {"digest:1:scope:topic:t1", "digest:2:tenant"}
    assert leaf["children"] == []
    with pytest.raises(NotFound, match="digest:0:note:999"):
        tools("digest", node_id="digest:0:note:999")


def test_resolve_by_content_hash_is_exact(tools: Tools) -> None:
    for line in tools("map")["nodes"][:10]:
        (match,) = tools("resolve", hash=line["content_hash"])["matches"]
        assert (match["node"]["id"], match["distance"]) == (line["id"], 0)
    with pytest.raises(NotFound):
        tools("resolve", hash="0" * 64)


def test_resolve_by_sem_hash_finds_all_within_eight_bits(tools: Tools) -> None:
    hashes = {node: one["sem_hash"] for node, one in tools.tenant.tree().items()}
    wanted = hashes["digest:0:note:5"]
    for flipped in (0, 0b1011, 1 << 63 | 1):
        asked = f"{int(wanted, 16) ^ flipped:016x}"
        tools.rows.read = tools.rows.searches = 0
        answer = tools("resolve", hash=asked, limit=1000)
        near = sorted((hamming(asked, found), node) for node, found in hashes.items() if hamming(asked, found) <= 8)
        assert [(match["distance"], match["node"]["id"]) for match in answer["matches"]] == near
        assert (tools.rows.read, tools.rows.searches) == (0, 1)
    assert tools("resolve", hash="0" * 16)["matches"] == []


@pytest.mark.parametrize("wrong", ["", "xyz", "ABCDEF0123456789", "0" * 17])
def test_what_is_no_hash_is_refused(wrong: str, tools: Tools) -> None:
    with pytest.raises(InvalidRequest, match="hash"):
        tools("resolve", hash=wrong)


def test_another_tenant_and_another_scope_see_nothing_of_it(tools: Tools) -> None:
    tree = tools.tenant.tree()
    assert tools("map", tenant="zenith")["nodes"] == []
    blue = {node for node, one in tree.items() if one["scope"] == "blue"}
    for node in ("digest:2:tenant", "digest:0:note:0", "digest:1:scope:topic:t0"):
        with pytest.raises(NotFound):
            tools("digest", seen_by="blue", node_id=node)
    view = tools("digest", seen_by="blue", node_id="digest:0:note:1", rows=10)
    assert {parent["id"] for parent in view["parents"]} <= blue
    found = tools("resolve", seen_by="blue", hash=tree["digest:0:note:0"]["sem_hash"], limit=1000)["matches"]
    assert {match["node"]["id"] for match in found} <= blue
    mapped = {line["id"] for line in tools("map", seen_by="blue")["nodes"]}
    assert mapped <= blue


def test_without_distilled_entities_there_is_nothing_to_find(tools: Tools) -> None:
    box = Toolbox(Registry({}), {}, tools.rows, RecallSettings())
    with pytest.raises(NotFound, match="distill"):
        asyncio.run(call_tool(box, "map", Caller("acme"), {}))
