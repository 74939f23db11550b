"""The registry: what entities exist, which columns they have, how each plane sees them. Read from YAML, immutable.

Collection names, mappings, graph steps and index versions are derived here and nowhere else. Knows no store.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from recall.errors import ConfigError, UnknownEntity
from recall.fields import FILTERABLE_TYPES, FieldType, filter_column
from recall.keys import content_hash
from recall.rows import Json
from recall.where import FilterFields

_ENTITY = re.compile(r"[a-z][a-z0-9_]{0,62}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
DIGEST = "digest"


class Strict(BaseModel):
    """Base of everything read from a file: unknown keys are errors, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _column(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Column(Strict):
    """One column of the source table. `filterable` columns are copied into every plane."""

    type: FieldType
    filterable: bool = False
    # Name in the user's table when it differs from the field's name.
    column: str | None = None

    @model_validator(mode="after")
    def _filterable_type(self) -> Self:
        if self.filterable and self.type not in FILTERABLE_TYPES:
            raise ValueError(f"a {self.type} column cannot be filterable")
        return self


class SearchSpec(Strict):
    fields: tuple[str, ...] = Field(min_length=1)


class EmbedSpec(Strict):
    """Text to embed: `fields` joined by line breaks, or a `template` such as `{name}: {notes}`; cut into chunks."""

    fields: tuple[str, ...] = ()
    template: str | None = None
    chunk_tokens: int = Field(default=256, ge=16, le=8192)
    overlap: int = Field(default=32, ge=0)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.fields) == bool(self.template):
            raise ValueError("give either `fields` or `template`")
        if self.overlap * 2 > self.chunk_tokens:
            raise ValueError("overlap may be at most half of chunk_tokens")
        return self


class EdgeSpec(Strict):
    """A foreign key seen as an edge. `field` holds one id (string) or a list of ids (strings)."""

    field: str
    rel: str
    target: str
    # Follow this edge backwards too, whatever `graph_reverse` says.
    both_ways: bool = False


class EdgeEnd(Strict):
    field: str
    entity: str


class EdgeTableSpec(Strict):
    """Rows of this entity *are* edges from `source` to `target`."""

    source: EdgeEnd
    rel: str
    target: EdgeEnd
    both_ways: bool = False


class DistillSpec(Strict):
    fields: tuple[str, ...] = ()
    template: str | None = None
    scopes: tuple[str, ...] = ()
    budget: int = Field(default=256, ge=16)


class EntitySpec(Strict):
    """One entity: a table of the source of truth and what each plane makes of its rows."""

    columns: dict[str, Annotated[Column, BeforeValidator(_column)]]
    table: str | None = None
    key: str = "id"
    version: str | None = None
    tenant: str = "tenant"
    scope: str | None = None
    search: SearchSpec | None = None
    embed: EmbedSpec | None = None
    edges: tuple[EdgeSpec, ...] = ()
    edge: EdgeTableSpec | None = None
    distill: DistillSpec | None = None
    pack_fields: tuple[str, ...] = ()
    # A connector: the graph channel walks through its rows but returns them only when the entity is asked for by name.
    bridge: bool = False

    @field_validator("columns")
    @classmethod
    def _names(cls, columns: dict[str, Column]) -> dict[str, Column]:
        for name in columns:
            if not _NAME.fullmatch(name):
                raise ValueError(f"column name {name!r} must match {_NAME.pattern}")
        return columns

    @model_validator(mode="after")
    def _fields_exist(self) -> Self:
        if self.key in self.columns and self.columns[self.key].type not in ("string", "int"):
            raise ValueError(f"key column {self.key!r} must be string or int")
        for use, names in self._uses():
            for name in names:
                if name not in self.columns and name != self.key:
                    raise ValueError(f"{use} names {name!r}, which is not a column")
        for edge in self.edges:
            kind = self.columns[edge.field].type if edge.field in self.columns else "string"
            if kind not in ("string", "strings", "int"):
                raise ValueError(f"edge field {edge.field!r} must be string, int or strings, not {kind}")
        return self

    def _uses(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        yield "pack_fields", self.pack_fields
        yield "edges", tuple(edge.field for edge in self.edges)
        for use, spec in (("search", self.search), ("embed", self.embed), ("distill", self.distill)):
            if spec is not None:
                yield use, spec.fields
                template = getattr(spec, "template", None)
                if template:
                    yield f"{use}.template", template_fields(template)
        if self.distill:
            yield "distill.scopes", self.distill.scopes
        if self.edge:
            yield "edge", (self.edge.source.field, self.edge.target.field)
        for use, name in (("version", self.version), ("scope", self.scope)):
            if name:
                yield use, (name,)


class SourceSpec(Strict):
    """Files that `recall import` reads. Relative paths and globs count from the registry file's folder.

    Either rows of one `entity` (the file's stem when left out) with `rename` {column in the file: field} and
    `defaults` {field: value}, or a `reader` `module:function` that yields (tenant or None, entity, row) from the files.
    """

    files: Annotated[tuple[str, ...], BeforeValidator(_one_or_many)] = Field(min_length=1)
    entity: str | None = None
    rename: dict[str, str] = {}
    defaults: dict[str, Json] = {}
    reader: str | None = None

    @model_validator(mode="after")
    def _reader_decides(self) -> Self:
        if self.reader and (self.entity or self.rename or self.defaults):
            raise ValueError("a reader names entities and fields itself: leave out entity, rename and defaults")
        return self


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
        merged = {**_builtin(), **specs}
        for name in merged:
            if not _ENTITY.fullmatch(name):
                raise ConfigError(f"entity name {name!r} must match {_ENTITY.pattern}")
        if DIGEST in specs:
            raise ConfigError(f"entity name {DIGEST!r} is reserved for summaries; rename the entity")
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
                if not _NAME.fullmatch(rel):
                    raise ConfigError(f"relation {rel!r} of entity {entity.name!r} must match {_NAME.pattern}")
        for source in self.sources:
            if source.entity is not None and source.entity not in self.entities:
                raise ConfigError(f"a source names entity {source.entity!r}, which is not declared")

    def entity(self, name: str) -> Entity:
        """The entity called `name`; raises UnknownEntity naming the known ones."""
        try:
            return self.entities[name]
        except KeyError:
            raise UnknownEntity(name, tuple(sorted(self.entities))) from None

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


def template_fields(template: str) -> tuple[str, ...]:
    """Field names that a `{field}` template uses. Attribute access, indexing and conversions are refused."""
    names: list[str] = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not _NAME.fullmatch(name) or spec or conversion:
            raise ValueError(f"template part {{{name}}} must be a plain {{field}}")
        names.append(name)
    return tuple(names)


def _builtin() -> dict[str, EntitySpec]:
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


def _explain(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
