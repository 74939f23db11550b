"""Reading what one request needs of the digest tree: parents of its candidates, level-1 nodes, the root. By id only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recall.altitude import Tree
from recall.digest.nodes import DIGEST, TENANT_NODE, entity_node, parent_of_part, source_of, texts_of
from recall.hydration import Reading
from recall.registry import Registry
from recall.rows import Ref, Row


class TreeReader:
    """Two batched reads of the source of truth, whatever the number of candidates."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def lower(self, candidates: Iterable[Ref]) -> list[Ref]:
        """What the first of the two reads asks for: level-0 nodes of `candidates`, digest hits among them, the root."""
        nodes = [
            ref if ref.entity == DIGEST else Ref(DIGEST, entity_node(ref)) for ref in candidates if self._known(ref)
        ]
        return [*nodes, Ref(DIGEST, TENANT_NODE)]

    async def read(self, reading: Reading, candidates: Sequence[Ref], timeout_s: float) -> Tree:
        """The part of the tree above `candidates` (rows and digest hits in any order). `reading` then has its rows."""
        lower = await _get(reading, self.lower(candidates), timeout_s)
        leaves = {id_: row for id_, row in lower.items() if row.values["level"] == 0}
        above = {parent for row in leaves.values() for parent in texts_of(row, "parent_ids")}
        above |= {parent_of_part(ref.id) for ref in candidates if ref.entity == DIGEST}
        upper = await _get(reading, [Ref(DIGEST, id_) for id_ in sorted(above - lower.keys())], timeout_s)
        nodes = lower | upper
        sources = {id_: source_of(row) for id_, row in leaves.items()}
        return Tree(
            parents={sources[id_]: texts_of(row, "parent_ids") for id_, row in leaves.items()},
            level1={id_ for id_, row in nodes.items() if _is_level1(row)},
            leaves={source: id_ for id_, source in sources.items()},
            sources=sources,
            root=TENANT_NODE in nodes,
        )

    def _known(self, ref: Ref) -> bool:
        return ref.entity == DIGEST or self._registry.entity(ref.entity).spec.distill is not None


async def _get(reading: Reading, refs: Sequence[Ref], timeout_s: float) -> dict[str, Row]:
    """Nodes by id, in the order asked for. Raises the StoreError of a read that failed."""
    await reading.fetch(refs, timeout_s)
    found = reading.hydrated(refs, None)
    for failure in found.failures.values():
        raise failure
    return {ref.id: row for ref, row in found.rows.items()}


def _is_level1(row: Row) -> bool:
    return row.values["level"] == 1 and row.values["kind"] != "part"
