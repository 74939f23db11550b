"""Reading what one request needs of the digest tree: parents of its candidates, level-1 nodes, the root. By id only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from recall.altitude import Tree
from recall.digest.nodes import DIGEST, TENANT_NODE, entity_node, parent_of_part
from recall.ports import RowReader
from recall.registry import Registry
from recall.rows import Caller, Json, Ref, Row

Size = Callable[[Row], int]


@dataclass(frozen=True, slots=True)
class Digests:
    """The tree as altitude sees it, and the rows of its nodes."""

    tree: Tree
    rows: Mapping[Ref, Row]


class TreeReader:
    """Two batched reads of the source of truth, whatever the number of candidates."""

    def __init__(self, registry: Registry, rows: RowReader, size: Size) -> None:
        self._registry = registry
        self._rows = rows
        self._size = size

    async def read(self, caller: Caller, candidates: Sequence[Ref], timeout_s: float) -> Digests:
        """The part of the tree above `candidates` (rows and digest hits in any order)."""
        leaf_ids = {entity_node(ref): ref for ref in candidates if self._distilled(ref)}
        hits = [ref.id for ref in candidates if ref.entity == DIGEST]
        lower = await self._get(caller, [*leaf_ids, *hits, TENANT_NODE], timeout_s)
        leaves = {id_: row for id_, row in lower.items() if row.values["level"] == 0}
        above = {parent for row in leaves.values() for parent in _texts(row.values["parent_ids"])}
        above |= {parent_of_part(id_) for id_ in hits}
        upper = await self._get(caller, sorted(above - lower.keys()), timeout_s)
        nodes = lower | upper
        sources = {id_: _source(row) for id_, row in leaves.items()}
        root = nodes.get(TENANT_NODE)
        tree = Tree(
            parents={sources[id_]: _texts(row.values["parent_ids"]) for id_, row in leaves.items()},
            level1={id_: self._size(row) for id_, row in nodes.items() if _is_level1(row)},
            leaves={sources[id_]: (id_, self._size(row)) for id_, row in leaves.items()},
            sources=sources,
            root=self._size(root) if root else None,
        )
        return Digests(tree, {row.ref: row for row in nodes.values()})

    def _distilled(self, ref: Ref) -> bool:
        return ref.entity != DIGEST and self._registry.entity(ref.entity).spec.distill is not None

    async def _get(self, caller: Caller, ids: Iterable[str], timeout_s: float) -> dict[str, Row]:
        wanted = list(dict.fromkeys(ids))
        return await self._rows.get_many(caller, DIGEST, wanted, timeout_s=timeout_s) if wanted else {}


def _is_level1(row: Row) -> bool:
    return row.values["level"] == 1 and row.values["kind"] != "part"


def _source(row: Row) -> Ref:
    return Ref(str(row.values["source_entity"]), str(row.values["source_id"]))


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
