"""The registry: what is refused, and what is derived from it."""

from __future__ import annotations

from typing import Any

import pytest

from recall.entities import template_fields
from recall.errors import ConfigError, UnknownEntity
from recall.registry import Registry, Step

ASSET: dict[str, Any] = {
    "columns": {
        "name": "string",
        "status": {"type": "string", "filterable": True},
        "cost": {"type": "float", "filterable": True},
        "site": "string",
        "tags": "strings",
    },
    "search": {"fields": ["name"]},
    "embed": {"template": "{name}: {status}"},
    "edges": [{"field": "site", "rel": "LOCATED_AT", "target": "site"}],
    "pack_fields": ["id", "name"],
}
SITE: dict[str, Any] = {"columns": {"name": "string", "cost": {"type": "int", "filterable": True}}}
LINK: dict[str, Any] = {
    "columns": {"a": "string", "b": "string"},
    "edge": {
        "source": {"field": "a", "entity": "asset"},
        "rel": "NEAR",
        "target": {"field": "b", "entity": "site"},
        "both_ways": True,
    },
}


def registry(**changes: Any) -> Registry:
    return Registry.parse({"entities": {"asset": {**ASSET, **changes}, "site": SITE, "link": LINK}}, "entities.yaml")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"colour": "red"}, r"asset\.colour"),
        ({"columns": {"name": {"type": "string", "sorted": True}}}, r"columns\.name\.sorted"),
        ({"columns": {"name": "text"}}, r"columns\.name\.type"),
        ({"columns": {"bad name": "string"}}, "bad name"),
        ({"columns": {"9": "string"}}, "'9'"),
        ({"columns": {**ASSET["columns"], "meta": {"type": "json", "filterable": True}}}, "json.*filterable"),
        ({"search": {"fields": ["title"]}}, "search names 'title'"),
        ({"search": {"fields": []}}, r"search\.fields"),
        ({"embed": {"fields": ["name"], "template": "{name}"}}, "either `fields` or `template`"),
        ({"embed": {}}, "either `fields` or `template`"),
        ({"embed": {"template": "{nome}"}}, "nome"),
        ({"embed": {"template": "{name.__class__}"}}, "plain"),
        ({"embed": {"template": "{name!r}"}}, "plain"),
        ({"embed": {"template": "{name:>{cost}}"}}, "plain"),
        ({"embed": {"fields": ["name"], "chunk_tokens": 64, "overlap": 33}}, "half"),
        ({"edges": [{"field": "place", "rel": "AT", "target": "site"}]}, "place"),
        ({"edges": [{"field": "cost", "rel": "AT", "target": "site"}]}, "must be string"),
        ({"edges": [{"field": "site", "rel": "AT", "target": "planet"}]}, "planet"),
        ({"edges": [{"field": "site", "rel": "uses `x`", "target": "site"}]}, "relation"),
        ({"pack_fields": ["nome"]}, "pack_fields names 'nome'"),
        ({"version": "rev"}, "version names 'rev'"),
        ({"scope": "region"}, "scope names 'region'"),
        ({"distill": {"fields": ["name"], "scopes": ["region"]}}, "distill"),
        ({"key": "cost"}, "key column 'cost'"),
    ],
)
def test_a_wrong_entity_is_refused_naming_the_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        registry(**changes)
    assert not isinstance(caught.value, KeyError)


@pytest.mark.parametrize("raw", [None, [], "entities", {}, {"entities": []}, {"entities": {}, "entity": {}}])
def test_a_document_of_another_shape_is_refused_naming_the_file(raw: object) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        Registry.parse(raw, "mine.yaml")


@pytest.mark.parametrize("name", ["Asset", "1st", "a-b", "", "x" * 64, "digest"])
def test_an_entity_name_is_an_identifier_and_not_reserved(name: str) -> None:
    with pytest.raises(ConfigError, match="entity name"):
        Registry.parse({"entities": {name: SITE}})


def test_an_unknown_entity_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownEntity, match=r"'ghost'.*asset, link, memory, site, topic"):
        registry().entity("ghost")


def test_the_key_is_a_column_even_when_it_is_not_declared() -> None:
    asset = registry().entity("asset")
    assert list(asset.columns) == ["id", "name", "status", "cost", "site", "tags"]
    assert (asset.columns["id"].type, asset.table, asset.in_graph) == ("string", "asset", True)
    assert not registry().entity("link").in_graph


def test_filterable_columns_are_those_declared_so() -> None:
    found = registry()
    assert found.entity("asset").filter_fields["cost"] == "float"
    assert found.entity("asset").filter_fields["name"] is None
    assert [column.column for column in found.filter_columns] == ["f_cost", "i_cost", "s_status"]


def test_steps_go_backwards_only_when_asked_or_declared() -> None:
    found = registry()
    forward = Step("asset", "LOCATED_AT", "site", reverse=False)
    backward = Step("site", "LOCATED_AT", "asset", reverse=True)
    near_back = Step("site", "NEAR", "asset", reverse=True)
    assert forward in found.steps("asset", reverse=False)
    assert found.steps("site", reverse=False) == (near_back,)
    assert found.steps("site", reverse=True) == (backward, near_back)
    assert Step("link", "NEAR", "site", reverse=False) not in found.relations


def test_memory_and_topic_are_built_in_and_may_be_replaced() -> None:
    assert registry().entity("topic").spec.bridge
    assert Step("topic", "mentions", "memory", reverse=True) in registry().steps("topic", reverse=False)
    own = Registry.parse({"entities": {"memory": {"columns": {"text": "string"}}}})
    assert list(own.entity("memory").columns) == ["id", "text"]


def test_an_index_version_changes_with_what_is_in_the_index_and_nothing_else() -> None:
    plain, packed = registry(), registry(pack_fields=["name"])
    longer = registry(embed={"template": "{name}: {status}", "chunk_tokens": 128})
    searched = registry(search={"fields": ["name", "status"]})
    renamed = registry(edges=[{"field": "site", "rel": "AT", "target": "site"}])
    assert plain.vector_version("m") == packed.vector_version("m") == searched.vector_version("m")
    assert len({plain.vector_version("m"), plain.vector_version("other"), longer.vector_version("m")}) == 3
    assert plain.search_version() == longer.search_version() == renamed.search_version() != searched.search_version()
    assert plain.graph_version() == longer.graph_version() != renamed.graph_version()


def test_template_fields_come_in_order() -> None:
    assert template_fields("{a} and {{literal}} {b}{a}") == ("a", "b", "a")
