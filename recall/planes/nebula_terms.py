"""Conditions of a portable openCypher query: what is compared with what, as NebulaGraph stores and spells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recall.entities import Column
from recall.errors import InvalidRequest
from recall.fields import convert
from recall.keys import store_key
from recall.planes.nebula_text import Scalar, literal, quoted, text
from recall.planes.nebula_tokens import Cursor, unescape
from recall.registry import Registry
from recall.rows import Caller, Json

_COMPARISONS = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True, slots=True)
class Value:
    """A literal or a parameter, resolved."""

    value: Json


@dataclass(frozen=True, slots=True)
class Property:
    """`variable.field` of a node, as the store spells it. `column` is None for the row id."""

    variable: str
    entity: str | None
    column: Column | None
    spelled: str


class Terms(Cursor):
    """Operands and conditions over the labelled nodes of a pattern."""

    def __init__(self, query: str, params: Mapping[str, Json], registry: Registry, caller: Caller) -> None:
        super().__init__(query)
        self._params = params
        self._registry = registry
        self._caller = caller
        # Variable → label, None for a node without one.
        self._labels: dict[str, str | None] = {}

    def _expression(self) -> str:
        parts = [self._conjunction()]
        while self._word("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"

    def _conjunction(self) -> str:
        parts = [self._negation()]
        while self._word("AND"):
            parts.append(self._negation())
        return " AND ".join(parts)

    def _negation(self) -> str:
        if self._word("NOT"):
            return f"NOT ({self._negation()})"
        if self._op("("):
            inner = self._expression()
            self._need_op(")")
            return f"({inner})"
        left = self._operand()
        if isinstance(left, Property):
            return self._test(left)
        if isinstance(left, Value) and isinstance(left.value, bool):
            return literal(left.value)
        raise self._not_understood()

    def _test(self, left: Property, equals: str | None = None) -> str:
        """What is asked of one property; `equals` is the sign for equality in a property map."""
        if equals is not None:
            self._need_op(equals)
            return self._compare(left, "==", self._operand())
        if self._word("IS", "NOT", "NULL"):
            return f"{left.spelled} IS NOT NULL"
        if self._word("IS", "NULL"):
            return f"{left.spelled} IS NULL"
        if self._word("IN"):
            return self._among(left)
        for words in (("STARTS", "WITH"), ("ENDS", "WITH"), ("CONTAINS",)):
            if self._word(*words):
                right = self._operand()
                if not isinstance(right, Value) or not isinstance(right.value, str):
                    raise InvalidRequest(f"{' '.join(words)} needs a text")
                return f"{left.spelled} {' '.join(words)} {text(right.value)}"
        if self._token.kind == "op" and self._token.text in _COMPARISONS:
            operator = _COMPARISONS[self._token.text]
            self._at += 1
            return self._compare(left, operator, self._operand())
        raise self._not_understood()

    def _compare(self, left: Property, operator: str, right: Value | Property) -> str:
        if isinstance(right, Property):
            return f"{left.spelled} {operator} {right.spelled}"
        if left.column is None and left.entity is not None and operator in ("==", "!="):
            return f"id({quoted(left.variable)}) {operator} {text(self._key(left, right.value))}"
        return f"{left.spelled} {operator} {literal(self._stored(left, right.value))}"

    def _among(self, left: Property) -> str:
        right = self._operand()
        if not isinstance(right, Value) or not isinstance(right.value, list):
            raise InvalidRequest("IN needs a list")
        if left.column is None and left.entity is not None:
            keys = ", ".join(text(self._key(left, item)) for item in right.value)
            return f"id({quoted(left.variable)}) IN [{keys}]"
        return f"{left.spelled} IN [{', '.join(literal(self._stored(left, item)) for item in right.value)}]"

    def _key(self, left: Property, value: Json) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{left.variable}.id is a text, not {value!r}")
        return store_key(self._caller.tenant, str(left.entity), value)

    def _stored(self, left: Property, value: Json) -> Scalar:
        if isinstance(value, (list, dict)):
            raise InvalidRequest(f"{left.variable}: a list or an object cannot be compared")
        if left.column is None or value is None:
            return value
        try:
            stored = convert(value, left.column.type)
        except ValueError as error:
            raise InvalidRequest(f"{left.spelled}: {error}") from None
        assert not isinstance(stored, (list, dict))
        return stored

    def _operand(self) -> Value | Property:
        token = self._token
        if token.kind == "param":
            self._at += 1
            name = token.text[1:]
            if name not in self._params:
                raise InvalidRequest(f"parameter ${name} is used and not given")
            return Value(self._params[name])
        if token.kind == "string":
            self._at += 1
            return Value(unescape(token.text[1:-1]))
        if self._op("["):
            items: list[Json] = []
            while not self._op("]"):
                item = self._operand()
                if isinstance(item, Property):
                    raise self._not_understood()
                items.append(item.value)
                self._op(",")
            return Value(items)
        negative = self._op("-")
        if self._token.kind == "number":
            return Value(self._number(negative=negative))
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._word(word):
                return Value(value)
        variable = self._variable()
        self._need_op(".")
        return self._property_of(variable, self._name())

    def _property_of(self, variable: str, name: str) -> Property:
        if variable not in self._labels:
            raise InvalidRequest(f"{variable!r} is no node of the pattern")
        entity = self._labels[variable]
        if entity is None:
            if name != "id":
                raise InvalidRequest(f"{variable}.{name}: give the node a label, as in ({variable}:Label)")
            return Property(variable, None, None, f"properties({quoted(variable)}).{quoted('rid')}")
        spec = self._registry.entity(entity)
        owner = f"{quoted(variable)}.{quoted(entity)}"
        if name in ("id", spec.key):
            return Property(variable, entity, None, f"{owner}.{quoted('rid')}")
        found = next((column for column in spec.filter_columns if column.field == name), None)
        if found is None:
            known = ", ".join(["id", *(column.field for column in spec.filter_columns)])
            raise InvalidRequest(f"{variable}.{name} is not in the graph; {entity} has: {known}")
        return Property(variable, entity, spec.columns[name], f"{owner}.{quoted(found.column)}")
