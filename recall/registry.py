"""The registry: what entities exist, which columns they have, how each plane sees them. Read from YAML, immutable.

Collection names, mappings, graph steps and index versions are derived here and nowhere else. Knows no store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from recall.builtin import digest_entity, memory_entities
from recall.digest.nodes import DIGEST
from recall.entities import NAME, Column, EntitySpec, SourceSpec, Strict
from recall.errors import ConfigError, UnknownEntity
from recall.fields import FieldType, filter_column
from recall.keys import content_hash
from recall.where import FilterFields

_ENTITY = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class FilterColumn:
    """A filterable field as a physical column of the shared planes."""

    field: str
    kind: FieldType
    column: str


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One kind of edge that a walk may follow from a row of `source` to a row of `target`."""

    source: str
    rel: str
    target: str
    reverse: bool


@dataclass(frozen=True)
class Entity:
    """A named entity with what is derived from its spec."""

    name: str
    spec: EntitySpec

    @property
    def table(self) -> str:
        return self.spec.table or self.name

    @property
    def key(self) -> str:
        return self.spec.key

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """All columns in declaration order, the key first when it is not declared."""
        if self.spec.key in self.spec.columns:
            return self.spec.columns
        return {self.spec.key: Column(type="string"), **self.spec.columns}

    @cached_property
    def filter_fields(self) -> FilterFields:
        """Field → type when filterable, else None; what `parse_where` checks against."""
        return {name: column.type if column.filterable else None for name, column in self.columns.items()}

    @cached_property
    def filter_columns(self) -> tuple[FilterColumn, ...]:
        return tuple(
            FilterColumn(name, column.type, filter_column(name, column.type))
            for name, column in self.columns.items()
            if column.filterable
        )

    @property
    def in_graph(self) -> bool:
        """Rows of an edge table are edges, never nodes that a walk may stop at."""
        return self.spec.edge is None


class Registry:
    """All entities of one application, with the built-in `memory` and `topic` unless it declares its own."""

    def __init__(self, specs: Mapping[str, EntitySpec], sources: Sequence[SourceSpec] = ()) -> None:
        if DIGEST in specs:
            raise ConfigError(f"entity name {DIGEST!r} is reserved for summaries; rename the entity")
        merged = {**memory_entities(), **specs}
        for name in merged:
            if not _ENTITY.fullmatch(name):
                raise ConfigError(f"entity name {name!r} must match {_ENTITY.pattern}")
        if any(spec.distill for spec in merged.values()):
            merged[DIGEST] = digest_entity()
        self.entities: Mapping[str, Entity] = {name: Entity(name, spec) for name, spec in merged.items()}
        self.sources: tuple[SourceSpec, ...] = tuple(sources)
        self._check_targets()

    @classmethod
    def parse(cls, raw: object, where: str = "registry") -> Registry:
        """Registry from parsed YAML (`{entities: {...}}`). Raises ConfigError naming every wrong key."""
        try:
            document = _Document.model_validate(raw)
        except ValidationError as error:
            raise ConfigError(f"{where}: {_explain(error)}") from None
        return cls(document.entities, document.sources)

    def _check_targets(self) -> None:
        for entity in self.entities.values():
            targets = [edge.target for edge in entity.spec.edges]
            rels = [edge.rel for edge in entity.spec.edges]
            if entity.spec.edge:
                targets += [entity.spec.edge.source.entity, entity.spec.edge.target.entity]
                rels.append(entity.spec.edge.rel)
            for target in targets:
                if target not in self.entities:
                    raise ConfigError(f"entity {entity.name!r} has an edge to {target!r}, which is not declared")
            for rel in rels:
                if not NAME.fullmatch(rel):
                    raise ConfigError(f"relation {rel!r} of entity {entity.name!r} must match {NAME.pattern}")
        for source in self.sources:
            if source.entity is not None and source.entity not in self.entities:
                raise ConfigError(f"a source names entity {source.entity!r}, which is not declared")

    def entity(self, name: str) -> Entity:
        """The entity called `name`; raises UnknownEntity naming the known ones."""
        try:
            return self.entities[name]
        except KeyError:
            raise UnknownEntity(name, tuple(sorted(self.entities))) from None

    @property
    def has_digests(self) -> bool:
        """Whether some entity is distilled, so that the entity `digest` exists."""
        return DIGEST in self.entities

    @cached_property
    def filter_columns(self) -> tuple[FilterColumn, ...]:
        """Union of the filterable columns of all entities, sorted by physical name."""
        union = {column.column: column for entity in self.entities.values() for column in entity.filter_columns}
        return tuple(union[name] for name in sorted(union))

    @cached_property
    def relations(self) -> tuple[Step, ...]:
        """Every declared edge in its stored direction, sorted."""
        found = {Step(e.name, edge.rel, edge.target, False) for e in self.entities.values() for edge in e.spec.edges}
        for entity in self.entities.values():
            if edge := entity.spec.edge:
                found.add(Step(edge.source.entity, edge.rel, edge.target.entity, False))
        return tuple(sorted(found))

    @cached_property
    def _both_ways(self) -> frozenset[Step]:
        found = {
            Step(e.name, edge.rel, edge.target, False)
            for e in self.entities.values()
            for edge in e.spec.edges
            if edge.both_ways
        }
        for entity in self.entities.values():
            if (edge := entity.spec.edge) and edge.both_ways:
                found.add(Step(edge.source.entity, edge.rel, edge.target.entity, False))
        return frozenset(found)

    def steps(self, source: str, *, reverse: bool) -> tuple[Step, ...]:
        """Steps a walk may take from a row of `source`: forward, and backward when `reverse` or `both_ways`."""
        forward = [step for step in self.relations if step.source == source]
        backward = [
            Step(step.target, step.rel, step.source, True)
            for step in self.relations
            if step.target == source and (reverse or step in self._both_ways)
        ]
        return tuple(sorted(forward + backward))

    def vector_version(self, model: str) -> str:
        """8 hex digits that change with the model, the embed fields or the chunking of any entity."""
        embeds = {name: e.spec.embed.model_dump() for name, e in self.entities.items() if e.spec.embed}
        return content_hash(["vector/1", model, embeds])[:8]

    def search_version(self) -> str:
        """8 hex digits that change with the search fields or the filterable columns of any entity."""
        fields = {name: e.spec.search.fields for name, e in self.entities.items() if e.spec.search}
        return content_hash(["search/1", fields, [c.column for c in self.filter_columns]])[:8]

    def graph_version(self) -> str:
        """8 hex digits that change with the relations or the node columns of any entity."""
        nodes = {name: [c.column for c in e.filter_columns] for name, e in self.entities.items()}
        return content_hash(["graph/1", nodes, [[s.source, s.rel, s.target] for s in self.relations]])[:8]


class _Document(Strict):
    entities: dict[str, EntitySpec]
    sources: tuple[SourceSpec, ...] = ()


def _explain(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
