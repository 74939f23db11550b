"""What an operator declares of an entity: columns, search, embedding, edges, distillation. Checked, immutable."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from recall.fields import FILTERABLE_TYPES, FieldType
from recall.rows import Json

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


class Strict(BaseModel):
    """Base of everything read from a file: unknown keys are errors, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _column(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Column(Strict):
    """One column of the source table. `filterable` columns are copied into every plane.

    `indexed` columns have an index in the source of truth, for `RowReader.find`.
    """

    type: FieldType
    filterable: bool = False
    indexed: bool = False
    # Name in the user's table when it differs from the field's name.
    column: str | None = None

    @model_validator(mode="after")
    def _filterable_type(self) -> Self:
        if self.filterable and self.type not in FILTERABLE_TYPES:
            raise ValueError(f"a {self.type} column cannot be filterable")
        if self.indexed and self.type not in FILTERABLE_TYPES:
            raise ValueError(f"a {self.type} column cannot be indexed")
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


class ExistingSpec(Strict):
    """Somebody else's table or view: read as it is where it lies, never created, altered or written.

    It needs a key column that is unique per tenant, of a text, integer or UUID type, and the columns that the entity
    declares; `_version` and `_deleted` are not expected. Rows without a `version` column count as version 0: changes
    are seen by their content. A row that leaves the table, or its view, is gone. In PostgreSQL `table` may name a
    schema (`sales.orders`); without one it is `public`.
    """

    # The tenant that all rows belong to, where the table has no `tenant` column.
    owner: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$")


def _existing(value: object) -> object:
    return ({} if value else None) if isinstance(value, bool) else value


class EntitySpec(Strict):
    """One entity: a table of the source of truth and what each plane makes of its rows."""

    columns: dict[str, Annotated[Column, BeforeValidator(_column)]]
    table: str | None = None
    # `true`, or `{owner: tenant}`: the table exists already, and is somebody else's.
    existing: Annotated[ExistingSpec | None, BeforeValidator(_existing)] = None
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
            if not NAME.fullmatch(name):
                raise ValueError(f"column name {name!r} must match {NAME.pattern}")
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


def template_fields(template: str) -> tuple[str, ...]:
    """Field names that a `{field}` template uses. Attribute access, indexing and conversions are refused."""
    names: list[str] = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not NAME.fullmatch(name) or spec or conversion:
            raise ValueError(f"template part {{{name}}} must be a plain {{field}}")
        names.append(name)
    return tuple(names)
