"""Nodes of the digest tree: their ids, their form as rows of the entity `digest`, and what they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from recall.digest.hashes import bands
from recall.keys import MAX_ID_BYTES, compact_json, content_hash
from recall.rows import Json, Ref, Row

Kind = Literal["entity", "scope", "cluster", "part", "tenant"]
DIGEST = "digest"
# Of the suffix of a part: a level, and the bits of a routing path and of a spread.
_PART_BYTES = 140
_NUMBERS = re.compile(r"([0-9]+)")
TENANT_NODE = "digest:2:tenant"


def entity_node(ref: Ref) -> str:
    """Id of the level-0 node of a row. A long row id is replaced by its hash, which leaves an id of legal length."""
    return _short(f"digest:0:{ref.entity}:", ref.id, MAX_ID_BYTES)


def scope_node(name: str, value: str) -> str:
    """Id of the level-1 node of all rows that have `value` in the scope field `name`.

    A value that reads like the suffix of a part gets a `#` more, one that is too long is replaced by its hash.
    """
    node = _short(f"digest:1:scope:{name}:", value, MAX_ID_BYTES - _PART_BYTES)
    return node + "#" if _is_part(node.rstrip("#")) else node


def _short(prefix: str, name: str, most: int) -> str:
    if len(prefix.encode()) + len(name.encode()) < most:
        return prefix + name
    return f"{prefix}~{content_hash(name)}"


def _is_part(node_id: str) -> bool:
    _, mark, tail = node_id.rpartition("#")
    level, dot, bits = tail.partition(".")
    return bool(mark and dot) and level.isdigit() and not bits.strip("01")


def scope_nodes(names: Sequence[str], values: Mapping[str, Json]) -> list[str]:
    """Ids of the scope nodes above a row: one for each of the fields `names` that has a value, or for each value."""
    found: list[str] = []
    for name in names:
        value = values.get(name)
        each = value if isinstance(value, list) else [value]
        found += [scope_node(name, _scope_value(one)) for one in each if one not in (None, "")]
    return sorted(set(found))


def _scope_value(value: Json) -> str:
    return value if isinstance(value, str) else compact_json(value).decode()


def level1_parts(node_id: str) -> tuple[Kind, str | None, str | None]:
    """Kind, scope name and scope value of a node above the rows, from its id."""
    if node_id == TENANT_NODE:
        return "tenant", None, None
    if parent_of_part(node_id) != node_id:
        return "part", None, None
    _, _, kind, name, value = node_id.split(":", 4)
    if kind != "scope":
        return "cluster", None, None
    return "scope", name, value.removesuffix("#") if _is_part(node_id.rstrip("#")) else value


def natural(node_id: str) -> list[str | int]:
    """Sort key under which `turn 10` follows `turn 9`: digits and other text by turns."""
    return [int(piece) if at % 2 else piece for at, piece in enumerate(_NUMBERS.split(node_id))]


def parent_of_part(node_id: str) -> str:
    """The node that a part belongs to; any other id is returned as it is.

    A scope value may hold `#`; a part's suffix is `#{level}.{bits}` and stands last.
    """
    return node_id.rpartition("#")[0] if _is_part(node_id) else node_id


def texts_of(row: Row, name: str) -> tuple[str, ...]:
    """A list column of a stored node, such as `child_ids`."""
    value = row.values.get(name)
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def source_of(row: Row) -> Ref:
    """The row that a stored node of level 0 was made from."""
    return Ref(str(row.values["source_entity"]), str(row.values["source_id"]))


@dataclass(frozen=True, slots=True)
class Node:
    """One digest. Level 0 only: `routing`, its leaf of the routing tree, and `source_hash`, of its guarded text.

    `input_hash`: what the summary was made of. `asked`: a model made it; else it is its source, or what its children
    say, which fitted. `cited_ids`: the children that the summary draws on.
    """

    id: str
    level: int
    kind: Kind
    summary: str
    summary_hash: str
    content_hash: str
    input_hash: str
    sem_hash: str
    child_ids: tuple[str, ...]
    parent_ids: tuple[str, ...]
    tokens: int
    recipe: str
    asked: bool = False
    cited_ids: tuple[str, ...] = ()
    scope_name: str | None = None
    scope_value: str | None = None
    source: Ref | None = None
    source_hash: str | None = None
    routing: str | None = None

    def row(self, version: int, updated_at: str, scope: str | None = None) -> Row:
        """The node as a row of `digest`."""
        values: dict[str, Json] = {
            "id": self.id,
            "level": self.level,
            "kind": self.kind,
            "scope_name": self.scope_name,
            "scope_value": self.scope_value,
            "source_entity": self.source.entity if self.source else None,
            "source_id": self.source.id if self.source else None,
            "summary": self.summary,
            "summary_hash": self.summary_hash,
            "content_hash": self.content_hash,
            "input_hash": self.input_hash,
            "sem_hash": self.sem_hash,
            **{f"band_{at}": band for at, band in enumerate(bands(self.sem_hash))},
            "child_ids": list(self.child_ids),
            "cited_ids": list(self.cited_ids),
            "parent_ids": list(self.parent_ids),
            "asked": self.asked,
            "tokens": self.tokens,
            "recipe": self.recipe,
            "source_hash": self.source_hash,
            "routing": self.routing,
            "updated_at": updated_at,
        }
        return Row(Ref(DIGEST, self.id), version, values, scope)
