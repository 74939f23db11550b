"""How a row becomes a tantivy document and a filter becomes a tantivy query. Opens no index and writes none.

String values up to `LONGEST` bytes are terms. A longer one is kept beside its document and compared one by one, so
that filters stay exact at any length.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tantivy
from tantivy import FieldType, Occur, Query

from recall.analysis import index_terms
from recall.fields import FieldType as Kind
from recall.planes.likes import like_shape, matching_values
from recall.registry import FilterColumn
from recall.rows import Json
from recall.where import AllOf, Condition, Where, matches

LONGEST = 4096
_WORDS = "recall_words"
_NUMERIC = dict.fromkeys(("int", "date", "datetime"), FieldType.Integer) | {"float": FieldType.Float}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def build_schema(columns: Sequence[FilterColumn]) -> tantivy.Schema:
    """Fixed fields, then one per filterable column. `present` names the columns with a value, `long` those too long."""
    builder = tantivy.SchemaBuilder()
    for name in ("key", "entity", "scope"):
        builder.add_text_field(name, stored=name == "key", tokenizer_name="raw", index_option="basic")
    for name in ("present", "long"):
        builder.add_text_field(name, tokenizer_name=_WORDS, index_option="basic")
    builder.add_text_field("terms", tokenizer_name=_WORDS, index_option="freq")
    builder.add_boolean_field("live", stored=True, indexed=True)
    builder.add_integer_field("version", stored=True)
    for name in ("identity", "text", "values"):
        builder.add_bytes_field(name, stored=True)
    for column in columns:
        if column.kind == "string":
            builder.add_text_field(column.column, tokenizer_name="raw", index_option="basic")
        elif column.kind == "bool":
            builder.add_boolean_field(column.column, indexed=True)
        elif column.kind == "float":
            builder.add_float_field(column.column, indexed=True, fast=True)
        else:
            builder.add_integer_field(column.column, indexed=True, fast=True)
    return builder.build()


def register_words(index: tantivy.Index) -> None:
    """Analysed text is stored as terms between spaces; the index only has to split it again."""
    index.register_tokenizer(_WORDS, tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build())


def document(row: Mapping[str, Any], columns: Sequence[FilterColumn]) -> tantivy.Document:
    """The document of one record of `document_schema`."""
    made = tantivy.Document()
    made.add_text("key", row["row_key"])
    made.add_text("entity", row["entity"])
    if row["scope"] is not None:
        made.add_text("scope", row["scope"])
    made.add_integer("version", row["version"])
    made.add_boolean("live", row["live"])
    made.add_bytes("identity", json.dumps([row["entity"], row["id"], row["hash"]]).encode())
    if not row["live"]:
        return made
    made.add_text("terms", " ".join(index_terms(row["text"])))
    made.add_bytes("text", row["text"].encode())
    present = [column for column in columns if row[column.column] is not None]
    made.add_text("present", " ".join(column.column for column in present))
    long = {c.column: row[c.column] for c in present if c.kind == "string" and _too_long(row[c.column])}
    for column in present:
        if column.column not in long:
            _ADD[column.kind](made, column.column, stored_value(column.kind, row[column.column]))
    if long:
        made.add_text("long", " ".join(long))
        made.add_bytes("values", json.dumps(long).encode())
    return made


def stored_value(kind: Kind, value: Any) -> Any:
    """A filter value as the index holds it: dates as day numbers, times as microseconds, no negative zero."""
    if kind == "date":
        return dt.date.fromisoformat(value).toordinal()
    if kind == "datetime":
        return (dt.datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND
    return value + 0.0 if kind == "float" else value


def _too_long(value: str) -> bool:
    return len(value) > LONGEST // 4 and len(value.encode()) > LONGEST


_ADD: dict[str, Callable[[Any, str, Any], None]] = {
    "string": lambda made, name, value: made.add_text(name, value),
    "bool": lambda made, name, value: made.add_boolean(name, value),
    "float": lambda made, name, value: made.add_float(name, value),
    **dict.fromkeys(("int", "date", "datetime"), lambda made, name, value: made.add_integer(name, value)),
}


# ---- queries -------------------------------------------------------------------------------------------------------


def all_of(queries: Iterable[Query]) -> Query:
    return Query.boolean_query([(Occur.Must, query) for query in queries])


def any_of(queries: Iterable[Query]) -> Query:
    return Query.boolean_query([(Occur.Should, query) for query in queries])


def one_of(schema: tantivy.Schema, field: str, values: Sequence[Any]) -> Query:
    return Query.term_set_query(schema, field, values) if values else Query.empty_query()


def unscored(query: Query) -> Query:
    return Query.const_score_query(query, 0.0)


class Filters:
    """Translates filters for one snapshot of one index."""

    def __init__(self, schema: tantivy.Schema, searcher: tantivy.Searcher) -> None:
        self._schema = schema
        self._searcher = searcher

    def query(self, where: Where) -> Query:
        """A query that matches exactly the documents whose values satisfy `where`."""
        if isinstance(where, Condition):
            return self._condition(where)
        clauses = [self.query(clause) for clause in where.clauses]
        return all_of(clauses) if isinstance(where, AllOf) else any_of(clauses)

    def _condition(self, condition: Condition) -> Query:
        present = Query.term_query(self._schema, "present", condition.column)
        if condition.op == "isnull":
            return _without(Query.all_query(), present) if condition.value else present
        if condition.kind != "string":
            return self._typed(condition, present)
        return any_of([self._short(condition, present), *self._long(condition)])

    def _typed(self, condition: Condition, present: Query) -> Query:
        column, kind, op = condition.column, condition.kind, condition.op
        values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
        stored = [stored_value(kind, value) for value in values]
        if op in ("eq", "in"):
            return self._equal(column, stored)
        if op in ("ne", "notin"):
            return _without(present, self._equal(column, stored))
        side = "lower" if op in ("gt", "gte") else "upper"
        bounds = {f"{side}_bound": stored[0], f"include_{side}": op in ("gte", "lte")}
        return Query.range_query(self._schema, column, _NUMERIC[kind], **bounds)

    def _short(self, condition: Condition, present: Query) -> Query:
        column, op = condition.column, condition.op
        values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
        if op in ("eq", "in"):
            return self._equal(column, values)
        if op in ("ne", "notin"):
            long = Query.term_query(self._schema, "long", column)
            return _without(present, any_of([self._equal(column, values), long]))
        return one_of(self._schema, column, self._dictionary(condition))

    def _dictionary(self, condition: Condition) -> list[str]:
        """Values of the column, of this snapshot, that satisfy a pattern or a range."""
        shape = like_shape(str(condition.value)) if condition.op == "like" else None
        prefix = shape.text if shape is not None and shape.kind in ("equal", "prefix") else ""
        values = [value for value, _ in self._searcher.terms_with_prefix(condition.column, prefix)]
        if condition.op in ("like", "ilike"):
            return matching_values(condition, values)
        return [value for value in values if matches(condition, {condition.field: value})]

    def _long(self, condition: Condition) -> list[Query]:
        """Documents whose value is too long to be a term and that satisfy the condition, by key; mostly none."""
        asked = Query.term_query(self._schema, "long", condition.column)
        found = self._searcher.search(asked, max(1, self._searcher.num_docs), count=False).hits
        keys: list[str] = []
        for _, address in found:
            stored = self._searcher.doc(address)
            values: dict[str, Json] = json.loads(stored["values"][0])
            if matches(condition, {condition.field: values[condition.column]}):
                keys.append(stored["key"][0])
        return [one_of(self._schema, "key", keys)] if keys else []

    def _equal(self, column: str, values: Sequence[Any]) -> Query:
        if len(values) == 1:
            return Query.term_query(self._schema, column, values[0])
        return one_of(self._schema, column, values)


def _without(query: Query, excluded: Query) -> Query:
    return Query.boolean_query([(Occur.Must, query), (Occur.MustNot, excluded)])
