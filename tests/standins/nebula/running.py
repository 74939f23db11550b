"""One request against the catalogue: definitions and writes here, reads in `reading` and `matching`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from standins.nebula.evaluation import Scope, compile_expression
from standins.nebula.lexer import EXECUTION, SEMANTIC, NgqlError, not_understood
from standins.nebula.matching import run_cypher
from standins.nebula.parser import parse
from standins.nebula.reading import Answer, read
from standins.nebula.storage import Index, Schema, Space, checked, storage_error
from standins.nebula.syntax import (
    AlterSchema,
    CreateIndex,
    CreateSchema,
    CreateSpace,
    Cypher,
    DeleteEdge,
    DeleteTag,
    DeleteVertex,
    Describe,
    DropSpace,
    Explain,
    InsertEdge,
    InsertVertex,
    Prop,
    RebuildIndex,
    Show,
    Statement,
    UpsertVertex,
    Use,
)

_INDEXABLE_BY_LENGTH = "string"


@dataclass(slots=True)
class Catalogue:
    """All data of one server; survives restarts of the listener. `delay_s` passes before a definition can be used."""

    delay_s: float = 0.0
    spaces: dict[str, Space] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def visible_at(self) -> float:
        return time.monotonic() + self.delay_s if self.delay_s else 0.0

    def space(self, name: str) -> Space:
        space = self.spaces.get(name)
        if space is None or space.visible_at > time.monotonic():
            raise NgqlError(EXECUTION, f"SpaceNotFound: SpaceName `{name}`")
        return space


def run(catalogue: Catalogue, space: str | None, text: str, params: Mapping[str, object]) -> tuple[Answer, str | None]:
    """Answer of the last statement of `text`, and the space that is in use afterwards."""
    answer = Answer()
    for statement in parse(text):
        with catalogue.lock:
            if isinstance(statement, Use):
                space = catalogue.space(statement.name).name
                answer = Answer()
            else:
                answer = _Run(catalogue, space, params).run(statement)
    return answer, space


class _Run:
    def __init__(self, catalogue: Catalogue, space: str | None, params: Mapping[str, object]) -> None:
        self._catalogue = catalogue
        self._space_name = space
        self._params = params

    def run(self, statement: Statement) -> Answer:
        if isinstance(statement, Explain):
            return Answer()
        definition = self._define(statement)
        if definition is not None:
            return definition
        if isinstance(statement, Show):
            return self._show(statement)
        if isinstance(statement, Describe):
            return self._describe(statement)
        if isinstance(statement, Cypher):
            return run_cypher(self.space(), statement, self._params)
        written = self._write(statement)
        return written if written is not None else read(self.space_or_none(), statement, self._params, self._catalogue)

    def space(self) -> Space:
        if self._space_name is None:
            raise NgqlError(SEMANTIC, "SemanticError: Space was not chosen.")
        return self._catalogue.space(self._space_name)

    def space_or_none(self) -> Space | None:
        return None if self._space_name is None else self._catalogue.space(self._space_name)

    # ---- definitions -------------------------------------------------------------------------------------------------

    def _define(self, statement: Statement) -> Answer | None:
        if isinstance(statement, CreateSpace):
            self._create_space(statement)
        elif isinstance(statement, DropSpace):
            self._drop_space(statement)
        elif isinstance(statement, CreateSchema):
            self._create_schema(statement)
        elif isinstance(statement, AlterSchema):
            self._alter(statement)
        elif isinstance(statement, CreateIndex):
            self._create_index(statement)
        elif isinstance(statement, RebuildIndex):
            return Answer(["New Job Id"], [[self.space().rebuild(statement.name)]])
        else:
            return None
        return Answer()

    def _create_space(self, statement: CreateSpace) -> None:
        if "vid_type" not in statement.options:
            raise NgqlError(SEMANTIC, "SemanticError: space vid_type must be specified explicitly")
        if statement.name in self._catalogue.spaces:
            if statement.if_not_exists:
                return
            raise NgqlError(EXECUTION, "Existed!")
        kind = statement.options["vid_type"]
        vid_bytes = kind if isinstance(kind, int) else None
        self._catalogue.spaces[statement.name] = Space(statement.name, vid_bytes, self._catalogue.visible_at())

    def _drop_space(self, statement: DropSpace) -> None:
        found = self._catalogue.spaces.get(statement.name)
        if found is None:
            if statement.if_exists:
                return
            raise NgqlError(EXECUTION, f"SpaceNotFound: SpaceName `{statement.name}`")
        if statement.clear:
            found.clear()
        else:
            del self._catalogue.spaces[statement.name]

    def _create_schema(self, statement: CreateSchema) -> None:
        space = self.space()
        among, others = (space.edges, space.tags) if statement.edge else (space.tags, space.edges)
        if statement.name in others:
            raise NgqlError(EXECUTION, "Schema with same name exists")
        if statement.name in among:
            # IF NOT EXISTS says nothing about other columns: it changes nothing.
            if statement.if_not_exists:
                return
            raise NgqlError(EXECUTION, "Existed!")
        among[statement.name] = Schema(_by_name(statement.props), self._catalogue.visible_at())

    def _alter(self, statement: AlterSchema) -> None:
        space = self.space()
        schema = (space.edges if statement.edge else space.tags).get(statement.name)
        if schema is None:
            raise NgqlError(EXECUTION, f"{'Edge' if statement.edge else 'Tag'} not existed!")
        for prop in statement.added:
            if prop.name in schema.props:
                raise NgqlError(EXECUTION, "Existed!")
            schema.props[prop.name] = prop
        among = space.outgoing if statement.edge else space.vertices
        for tags in among.values():
            for name, props in tags.items():
                if (name[0] if statement.edge else name) == statement.name:
                    props.update({prop.name: prop.default for prop in statement.added})

    def _create_index(self, statement: CreateIndex) -> None:
        space = self.space()
        names = [name for name, _ in statement.fields]
        same = [i for i in space.indexes.values() if i.tag == statement.tag and [n for n, _ in i.fields] == names]
        if statement.name in space.indexes or same:
            if statement.if_not_exists:
                return
            raise NgqlError(EXECUTION, "Existed!")
        schema = space.tags.get(statement.tag)
        if schema is None:
            raise NgqlError(EXECUTION, "TagNotFound: Tag not existed!")
        for name, length in statement.fields:
            if name not in schema.props:
                raise NgqlError(EXECUTION, "Tag not existed!")
            if schema.props[name].kind == _INDEXABLE_BY_LENGTH and length is None:
                raise NgqlError(EXECUTION, "Invalid param!")
        space.indexes[statement.name] = Index(statement.tag, statement.fields, self._catalogue.visible_at())

    def _show(self, statement: Show) -> Answer:
        if statement.what == "SPACES":
            return Answer(["Name"], [[name] for name in sorted(self._catalogue.spaces)])
        space = self.space()
        if statement.what == "TAGS":
            return Answer(["Name"], [[name] for name in sorted(space.tags)])
        if statement.what == "EDGES":
            return Answer(["Name"], [[name] for name in sorted(space.edges)])
        if statement.what == "TAG INDEXES":
            rows = [[name, i.tag, [field for field, _ in i.fields]] for name, i in sorted(space.indexes.items())]
            return Answer(["Index Name", "By Tag", "Columns"], rows)
        if statement.what == "JOB":
            if not isinstance(statement.argument, int) or not 0 < statement.argument <= space.jobs:
                raise NgqlError(EXECUTION, "Job not in chosen space!")
            columns = ["Job Id(TaskId)", "Command(Dest)", "Status", "Start Time", "Stop Time", "Error Code"]
            return Answer(columns, [[statement.argument, "REBUILD_TAG_INDEX", "FINISHED", None, None, "SUCCEEDED"]])
        text = "There is no any stats info to show, please execute `submit job stats' firstly!"
        raise NgqlError(EXECUTION, text)

    def _describe(self, statement: Describe) -> Answer:
        if statement.what == "SPACE":
            raise not_understood("DESCRIBE SPACE")
        space = self.space()
        schema = (space.edges if statement.what == "EDGE" else space.tags).get(statement.name)
        if schema is None:
            raise NgqlError(EXECUTION, f"{statement.what.title()} not existed!")
        rows = [
            [prop.name, prop.kind, "YES" if prop.nullable else "NO", prop.default, None]
            for prop in schema.props.values()
        ]
        return Answer(["Field", "Type", "Null", "Default", "Comment"], rows)

    # ---- writes ------------------------------------------------------------------------------------------------------

    def _write(self, statement: Statement) -> Answer | None:
        if isinstance(statement, InsertVertex):
            self._insert_vertices(statement)
        elif isinstance(statement, InsertEdge):
            self._insert_edges(statement)
        elif isinstance(statement, UpsertVertex):
            return self._upsert(statement)
        elif isinstance(statement, DeleteVertex):
            for vid in statement.vids:
                self.space().drop_tags(self.space().check_vid(vid))
                if statement.with_edge:
                    self.space().drop_edges_of(vid)
        elif isinstance(statement, DeleteEdge):
            self.space().edge_type(statement.edge)
            for key in statement.keys:
                self.space().drop_edge(key, statement.edge)
        elif isinstance(statement, DeleteTag):
            for tag in statement.tags:
                self.space().tag(tag)
            for vid in statement.vids:
                self.space().drop_tags(self.space().check_vid(vid), statement.tags)
        else:
            return None
        return Answer()

    def _insert_vertices(self, statement: InsertVertex) -> None:
        space = self.space()
        schema = space.tag(statement.tag)
        empty = Scope(space)
        for vid, values in statement.rows:
            props = schema.row(statement.names, [compile_expression(v, self._params)(empty) for v in values])
            space.put_vertex(vid, statement.tag, props, keep=statement.if_not_exists)

    def _insert_edges(self, statement: InsertEdge) -> None:
        space = self.space()
        schema = space.edge_type(statement.edge)
        empty = Scope(space)
        for key, values in statement.rows:
            props = schema.row(statement.names, [compile_expression(v, self._params)(empty) for v in values])
            space.put_edge(key, statement.edge, props, keep=statement.if_not_exists)

    def _upsert(self, statement: UpsertVertex) -> Answer:
        space = self.space()
        schema = space.tag(statement.tag)
        stored = space.vertices.get(space.check_vid(statement.vid), {}).get(statement.tag)
        row = dict(stored) if stored is not None else {name: prop.default for name, prop in schema.props.items()}
        holds = statement.when is None or stored is None
        if not holds and statement.when is not None:
            holds = compile_expression(statement.when, self._params)(Scope(space, dict(row))) is True
        if holds:
            scope = Scope(space, dict(row))
            for name, of in statement.assignments:
                if name not in schema.props:
                    raise NgqlError(SEMANTIC, f"SemanticError: Unknown column `{name}' in schema")
                row[name] = checked(schema.props[name], compile_expression(of, self._params)(scope))
            if any(row[name] is None and not prop.nullable for name, prop in schema.props.items()):
                raise storage_error("Invalid field value: may be the filed without default value or wrong schema")
            space.put_vertex(statement.vid, statement.tag, row)
        if statement.returning is None:
            return Answer()
        names = [column.name for column in statement.returning.columns]
        scope = Scope(space, row)
        return Answer(names, [[compile_expression(c.of, self._params)(scope) for c in statement.returning.columns]])


def _by_name(props: tuple[Prop, ...]) -> dict[str, Prop]:
    found = {prop.name: prop for prop in props}
    if len(found) != len(props):
        raise NgqlError(EXECUTION, "Duplicate column name")
    return found
