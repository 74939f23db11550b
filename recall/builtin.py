"""The entities that every application has: `memory` and `topic`, and `digest` where something is distilled."""

from __future__ import annotations

from recall.digest.hashes import BANDS
from recall.entities import Column, EdgeSpec, EmbedSpec, EntitySpec, SearchSpec


def memory_entities() -> dict[str, EntitySpec]:
    """`memory` (a fact, its metadata, links to other facts) and `topic` (what facts mention)."""
    memory = EntitySpec(
        columns={
            "fact": Column(type="string"),
            "metadata": Column(type="json"),
            "links": Column(type="strings"),
            "mentions": Column(type="strings"),
        },
        search=SearchSpec(fields=("fact",)),
        embed=EmbedSpec(fields=("fact",)),
        edges=(
            EdgeSpec(field="links", rel="relates", target="memory"),
            EdgeSpec(field="mentions", rel="mentions", target="topic", both_ways=True),
        ),
    )
    topic = EntitySpec(columns={"name": Column(type="string")}, search=SearchSpec(fields=("name",)), bridge=True)
    return {"memory": memory, "topic": topic}


def digest_entity() -> EntitySpec:
    """Nodes of the digest tree (`recall.digest.nodes`), embedded and searched by their summary."""
    columns = {
        "level": Column(type="int", filterable=True),
        "kind": Column(type="string", filterable=True),
        "scope_name": Column(type="string", filterable=True),
        "scope_value": Column(type="string", filterable=True),
        "source_entity": Column(type="string"),
        "source_id": Column(type="string"),
        "summary": Column(type="string"),
        "summary_hash": Column(type="string"),
        "content_hash": Column(type="string", indexed=True),
        "input_hash": Column(type="string", indexed=True),
        "sem_hash": Column(type="string"),
        **{f"band_{band}": Column(type="int", indexed=True) for band in range(BANDS)},
        "child_ids": Column(type="strings"),
        "cited_ids": Column(type="strings"),
        "parent_ids": Column(type="strings"),
        "asked": Column(type="bool"),
        "tokens": Column(type="int"),
        "recipe": Column(type="string"),
        "source_hash": Column(type="string"),
        "routing": Column(type="string"),
        "updated_at": Column(type="datetime"),
    }
    return EntitySpec(
        columns=columns,
        search=SearchSpec(fields=("summary",)),
        embed=EmbedSpec(fields=("summary",)),
        pack_fields=("id", "kind", "scope_name", "scope_value", "source_entity", "source_id", "summary"),
        bridge=True,
    )
