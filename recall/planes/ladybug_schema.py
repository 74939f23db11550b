"""Names, tables and filters of a ladybug graph, derived from the registry. Every identifier is back-ticked, every value
bound. Opens no database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from recall.readonly import quoted
from recall.registry import Entity, FilterColumn, Registry, Step
from recall.where import AllOf, Condition, Where, like_regex

SCOPE = "_scope"
OWNER = "_owner"
_TYPES = {"string": "STRING", "int": "INT64", "float": "DOUBLE", "bool": "BOOL", "date": "STRING", "datetime": "STRING"}
_COMPARED = {"eq": "=", "ne": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class GraphNames:
    """Table and column names. A field, label or relation keeps its own name unless ladybug, which ignores case, would
    take it for another one."""

    def __init__(self, registry: Registry, node_schema: pa.Schema) -> None:
        self.registry = registry
        self.node_schema = node_schema
        self.labels = tuple(name for name, entity in registry.entities.items() if entity.in_graph)

    @cached_property
    def relations(self) -> Mapping[str, str]:
        """Relation → table."""
        taken = {name.casefold() for name in self.registry.entities}
        return {rel: _free(rel, taken) for rel in sorted({step.rel for step in self.registry.relations})}

    def columns(self, entity: Entity) -> Mapping[FilterColumn, str]:
        """Filterable column → property of the entity's nodes; the id is always `id`."""
        taken = {"id", SCOPE}
        found: dict[FilterColumn, str] = {}
        for column in entity.filter_columns:
            if column.field == entity.key == "id" and column.kind == "string":
                found[column] = "id"
            else:
                found[column] = _free(column.field, taken)
        return found

    def ddl(self) -> list[str]:
        """Statements that create the node and relation tables of an empty database."""
        statements = []
        for label in self.labels:
            columns = self.columns(self.registry.entity(label))
            typed = [f"{quoted(name)} {_TYPES[c.kind]}" for c, name in columns.items() if name != "id"]
            parts = ["id STRING PRIMARY KEY", f"{quoted(SCOPE)} STRING", *typed]
            statements.append(f"CREATE NODE TABLE IF NOT EXISTS {quoted(label)} ({', '.join(parts)})")
        for rel, table in self.relations.items():
            steps = [step for step in self.registry.relations if step.rel == rel]
            pairs = [
                f"FROM {quoted(step.source)} TO {quoted(step.target)}"
                for step in steps
                if step.source in self.labels and step.target in self.labels
            ]
            if pairs:
                parts = [*pairs, f"{quoted(OWNER)} STRING"]
                statements.append(f"CREATE REL TABLE IF NOT EXISTS {quoted(table)} ({', '.join(parts)})")
        return statements


def _free(name: str, taken: set[str]) -> str:
    while name.casefold() in taken:
        name += "_"
    taken.add(name.casefold())
    return name


@dataclass(frozen=True, slots=True)
class Hop:
    """One kind of step as Cypher. A statement takes `$id`, or `$ids` for many sources, and `params`."""

    pattern: str
    tests: tuple[str, ...]
    params: Mapping[str, object]

    def targets(self, limit: int) -> str:
        """(target id), distinct, in order, at most `limit`."""
        return f"{self._of_one()} RETURN DISTINCT t.id ORDER BY t.id LIMIT {limit:d}"

    def degree(self) -> str:
        """(number of distinct targets)."""
        return f"{self._of_one()} RETURN count(DISTINCT t.id)"

    def pairs(self) -> str:
        """(source id, target id), distinct, of all `$ids`."""
        return f"UNWIND $ids AS k MATCH {self._where('s.id = k')} RETURN DISTINCT s.id, t.id"

    def _of_one(self) -> str:
        return f"MATCH {self._where('s.id = $id')}"

    def _where(self, source: str) -> str:
        return f"{self.pattern} WHERE {' AND '.join([source, *self.tests])}"


def hop(names: GraphNames, step: Step, where: Where | None, scope: str | None) -> Hop:
    """The statement parts of one step; both ends inside `scope`, the target satisfying `where`."""
    left, right = ("<-", "-") if step.reverse else ("-", "->")
    rel = quoted(names.relations[step.rel])
    pattern = f"(s:{quoted(step.source)}){left}[:{rel}]{right}(t:{quoted(step.target)})"
    tests: list[str] = []
    params: dict[str, object] = {}
    if scope is not None:
        tests += [f"s.{quoted(SCOPE)} = $scope", f"t.{quoted(SCOPE)} = $scope"]
        params["scope"] = scope
    if where is not None:
        columns = names.columns(names.registry.entity(step.target))
        tests.append(_Filter({(c.field, c.kind): name for c, name in columns.items()}, params).text(where))
    return Hop(pattern, tuple(tests), params)


class _Filter:
    """A filter as a Cypher expression over `t`, its values in `params`."""

    def __init__(self, columns: Mapping[tuple[str, str], str], params: dict[str, object]) -> None:
        self._columns = columns
        self._params = params

    def text(self, where: Where) -> str:
        if isinstance(where, Condition):
            return self._condition(where)
        word = " AND " if isinstance(where, AllOf) else " OR "
        return f"({word.join(self.text(clause) for clause in where.clauses)})"

    def _condition(self, condition: Condition) -> str:
        name = self._columns.get((condition.field, condition.kind))
        if name is None:
            # The target's entity has no such field: null, which satisfies `isnull: true` alone.
            return "true" if condition.op == "isnull" and condition.value else "false"
        column = f"t.{quoted(name)}"
        if condition.op == "isnull":
            return f"{column} IS {'' if condition.value else 'NOT '}NULL"
        if condition.op in ("in", "notin"):
            assert isinstance(condition.value, tuple)
            bound = self._bound(list(condition.value))
            return f"{column} IN {bound}" if condition.op == "in" else f"NOT {column} IN {bound}"
        if condition.op in ("like", "ilike"):
            flags = "(?s)" if condition.op == "like" else "(?is)"
            # The engine halves doubled backslashes before the expression is compiled.
            pattern = flags + like_regex(str(condition.value)).replace("\\\\", "\\x5c")
            return f"regexp_full_match({column}, {self._bound(pattern)})"
        return f"{column} {_COMPARED[condition.op]} {self._bound(condition.value)}"

    def _bound(self, value: object) -> str:
        name = f"v{len(self._params)}"
        self._params[name] = value
        return f"${name}"
