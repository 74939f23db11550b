"""Queries of `graph_traverse` in NebulaGraph's dialect: the portable openCypher subset is translated, nGQL is bounded.

Portable: one `MATCH` pattern of labelled nodes and (bounded) relations, `WHERE`, `RETURN`, `ORDER BY`, `SKIP`, `LIMIT`.
`n.id` is a row id: tests for equality become tests on the vertex id, from which the server can start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recall.errors import Forbidden, InvalidRequest
from recall.fields import convert
from recall.keys import store_key
from recall.planes.nebula_text import Scalar, literal, quoted, text
from recall.readonly import bounded_cypher, check_ngql
from recall.registry import Column, Registry
from recall.rows import Caller, Json

MAX_HOPS = 10
_NATIVE = frozenset({"GO", "FETCH", "LOOKUP", "FIND", "GET", "YIELD"})
_AGGREGATES = frozenset({"count", "collect", "min", "max", "sum", "avg"})
_COMPARISONS = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEY = re.compile(r"[0-9a-f]{32}")
_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>`[^`]+`)
    | (?P<param>\$\w+)
    | (?P<number>\d+(?:\.(?!\.)\d+)?(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<op><>|<=|>=|\.\.|[()\[\]{},.:|=<>+\-*])
    """,
    re.VERBOSE | re.DOTALL,
)
_STRING_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Translated:
    """`names` are the columns that the caller asked for; empty when the server names them."""

    text: str
    names: tuple[str, ...] = ()
    params: Mapping[str, Scalar | list[str]] = field(default_factory=dict)


def translate(query: str, params: Mapping[str, Json], registry: Registry, caller: Caller, limit: int) -> Translated:
    """`query` as a statement for the tenant's own space, at most `limit` rows.

    Raises Forbidden for what is not allowed, InvalidRequest for what is not understood, naming it.
    """
    first = re.match(r"\s*(\w+)", query)
    if first is not None and first.group(1).upper() in _NATIVE:
        return _native(query, params, caller, limit)
    return _Translator(bounded_cypher(query, limit), params, registry, caller).translate()


def _native(query: str, params: Mapping[str, Json], caller: Caller, limit: int) -> Translated:
    """nGQL as it is. A parameter that names a row, `{"entity": …, "id": …}`, stands for its vertex id."""
    check_ngql(query)
    if caller.scope is not None:
        raise Forbidden("nGQL cannot be confined to a scope: ask with MATCH, or with a credential of the whole tenant")
    keys = {name: key for name, value in params.items() if (key := _vertex_id(value, caller.tenant)) is not None}
    # Vertex ids cannot be parameters of the server, so they are spliced in; they hold nothing but hex digits.
    spliced = re.sub(
        r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)|\$(\w+)""",
        lambda found: found.group(1) or (text(keys[found.group(2)]) if found.group(2) in keys else found.group()),
        query.strip(),
    )
    rest = {name: _server_value(name, value) for name, value in params.items() if name not in keys}
    return Translated(f"{spliced} | LIMIT {limit}", (), rest)


def _vertex_id(value: Json, tenant: str) -> str | None:
    if isinstance(value, dict) and set(value) == {"entity", "id"}:
        return store_key(tenant, str(value["entity"]), str(value["id"]))
    return value if isinstance(value, str) and _KEY.fullmatch(value) else None


def _server_value(name: str, value: Json) -> Scalar | list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [str(item) for item in value]
    if isinstance(value, (list, dict)):
        raise InvalidRequest(f"parameter ${name} must be a scalar, a list of texts, or a row as {{entity, id}}")
    return value


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Value:
    """A literal or a parameter, resolved."""

    value: Json


@dataclass(frozen=True, slots=True)
class _Property:
    """`variable.field` of a node, as the store spells it. `column` is None for the row id."""

    variable: str
    entity: str | None
    column: Column | None
    spelled: str


class _Translator:
    def __init__(self, query: str, params: Mapping[str, Json], registry: Registry, caller: Caller) -> None:
        self._tokens = _scan(query)
        self._at = 0
        self._params = params
        self._registry = registry
        self._caller = caller
        self._labels: dict[str, str | None] = {}
        self._paths: set[str] = set()
        self._conditions: list[str] = []
        self._repeats = False

    def translate(self) -> Translated:
        self._need("MATCH")
        pattern = self._pattern()
        if self._word("WHERE"):
            self._conditions.append(f"({self._expression()})")
        if not self._is("RETURN"):
            raise self._not_understood()
        self._confine()
        where = f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        named = pattern if not (self._repeats and self._caller.scope) or "=" in pattern else f"recall_path={pattern}"
        return self._returned(f"MATCH {named}{where} ")

    # ---- tokens ------------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _is(self, *words: str) -> bool:
        parts = self._tokens[self._at : self._at + len(words)]
        return [part.text.upper() if part.kind == "word" else "" for part in parts] == list(words)

    def _word(self, *words: str) -> bool:
        if self._is(*words):
            self._at += len(words)
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._word(word):
            raise self._not_understood()

    def _op(self, op: str) -> bool:
        if self._token.kind == "op" and self._token.text == op:
            self._at += 1
            return True
        return False

    def _need_op(self, op: str) -> None:
        if not self._op(op):
            raise self._not_understood()

    def _name(self) -> str:
        token = self._token
        if token.kind not in ("word", "name"):
            raise self._not_understood()
        self._at += 1
        return token.text.strip("`")

    def _variable(self) -> str:
        name = self._name()
        if not name.isascii() or not name.replace("_", "a").isalnum():
            raise InvalidRequest(f"variable {name!r} must be made of letters, digits and underscores")
        return name

    def _not_understood(self) -> InvalidRequest:
        near = self._token.text or "the end"
        return InvalidRequest(
            f"the graph query is not understood near {near!r}: expected one pattern, as in "
            "MATCH (n:Label {id: $id})-[:REL*1..2]->(m:Target) WHERE m.field = $value RETURN m.id"
        )

    # ---- pattern -----------------------------------------------------------------------------------------------------

    def _pattern(self) -> str:
        path = ""
        if self._token.kind in ("word", "name") and self._tokens[self._at + 1].text == "=":
            variable = self._variable()
            self._paths.add(variable)
            self._need_op("=")
            path = f"{quoted(variable)}="
        out = [self._node()]
        while self._token.text in ("-", "<"):
            out += [self._relation(), self._node()]
        return path + "".join(out)

    def _node(self) -> str:
        self._need_op("(")
        named = self._token.kind in ("word", "name")
        variable = self._variable() if named else f"recall_n{len(self._labels)}"
        label = None
        if self._op(":"):
            label = self._registry.entity(self._name()).name
        if label is not None or variable not in self._labels:
            self._labels[variable] = label
        if self._op("{"):
            while True:
                condition = self._test(self._property_of(variable, self._name()), ":")
                self._conditions.append(condition)
                if not self._op(","):
                    break
            self._need_op("}")
        self._need_op(")")
        return f"({quoted(variable)}{':' + quoted(label) if label is not None else ''})"

    def _relation(self) -> str:
        backwards = self._op("<")
        self._need_op("-")
        inside = ""
        if self._op("["):
            if self._token.kind in ("word", "name"):
                inside = quoted(self._variable())
            if self._op(":"):
                inside += ":" + self._types()
            if self._op("*"):
                inside += self._hops()
            self._need_op("]")
        self._need_op("-")
        forwards = self._op(">")
        if backwards and forwards:
            raise self._not_understood()
        return f"{'<-' if backwards else '-'}[{inside}]{'->' if forwards else '-'}"

    def _types(self) -> str:
        types = [self._relation_name()]
        while self._op("|"):
            self._op(":")
            types.append(self._relation_name())
        return "|".join(types)

    def _relation_name(self) -> str:
        name = self._name()
        known = {step.rel for step in self._registry.relations}
        if name not in known:
            raise InvalidRequest(f"unknown relation {name!r}; the registry declares: {', '.join(sorted(known))}")
        return quoted(name)

    def _hops(self) -> str:
        self._repeats = True
        first = last = self._integer() if self._token.kind == "number" else None
        if self._op(".."):
            last = self._integer() if self._token.kind == "number" else None
        if last is None:
            raise InvalidRequest(f"a repeated relation needs an upper bound of at most {MAX_HOPS}, as in *1..3")
        first = 1 if first is None else first
        if not 0 <= first <= last <= MAX_HOPS:
            raise InvalidRequest(f"hops *{first}..{last} must grow and stay within {MAX_HOPS}")
        return f"*{first}..{last}"

    def _confine(self) -> None:
        """A caller of one scope sees its rows only, on the way too."""
        if self._caller.scope is None:
            return
        scope = literal(self._caller.scope)
        self._conditions += [f"properties({quoted(name)}).{quoted('scope')} == {scope}" for name in self._labels]
        if self._repeats:
            path = quoted(next(iter(self._paths), "recall_path"))
            self._conditions.append(f"all(x IN nodes({path}) WHERE properties(x).{quoted('scope')} == {scope})")

    # ---- expressions -------------------------------------------------------------------------------------------------

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
        if isinstance(left, _Property):
            return self._test(left)
        if isinstance(left, _Value) and isinstance(left.value, bool):
            return literal(left.value)
        raise self._not_understood()

    def _test(self, left: _Property, equals: str | None = None) -> str:
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
                if not isinstance(right, _Value) or not isinstance(right.value, str):
                    raise InvalidRequest(f"{' '.join(words)} needs a text")
                return f"{left.spelled} {' '.join(words)} {text(right.value)}"
        if self._token.kind == "op" and self._token.text in _COMPARISONS:
            operator = _COMPARISONS[self._token.text]
            self._at += 1
            return self._compare(left, operator, self._operand())
        raise self._not_understood()

    def _compare(self, left: _Property, operator: str, right: _Value | _Property) -> str:
        if isinstance(right, _Property):
            return f"{left.spelled} {operator} {right.spelled}"
        if left.column is None and left.entity is not None and operator in ("==", "!="):
            return f"id({quoted(left.variable)}) {operator} {text(self._key(left, right.value))}"
        return f"{left.spelled} {operator} {literal(self._stored(left, right.value))}"

    def _among(self, left: _Property) -> str:
        right = self._operand()
        if not isinstance(right, _Value) or not isinstance(right.value, list):
            raise InvalidRequest("IN needs a list")
        if left.column is None and left.entity is not None:
            keys = ", ".join(text(self._key(left, item)) for item in right.value)
            return f"id({quoted(left.variable)}) IN [{keys}]"
        return f"{left.spelled} IN [{', '.join(literal(self._stored(left, item)) for item in right.value)}]"

    def _key(self, left: _Property, value: Json) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(f"{left.variable}.id is a text, not {value!r}")
        return store_key(self._caller.tenant, str(left.entity), value)

    def _stored(self, left: _Property, value: Json) -> Scalar:
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

    def _operand(self) -> _Value | _Property:
        token = self._token
        if token.kind == "param":
            self._at += 1
            name = token.text[1:]
            if name not in self._params:
                raise InvalidRequest(f"parameter ${name} is used and not given")
            return _Value(self._params[name])
        if token.kind == "string":
            self._at += 1
            return _Value(_unescape(token.text[1:-1]))
        if self._op("["):
            items: list[Json] = []
            while not self._op("]"):
                item = self._operand()
                if isinstance(item, _Property):
                    raise self._not_understood()
                items.append(item.value)
                self._op(",")
            return _Value(items)
        negative = self._op("-")
        if self._token.kind == "number":
            return _Value(self._number(negative=negative))
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._word(word):
                return _Value(value)
        variable = self._variable()
        self._need_op(".")
        return self._property_of(variable, self._name())

    def _property_of(self, variable: str, name: str) -> _Property:
        if variable not in self._labels:
            raise InvalidRequest(f"{variable!r} is no node of the pattern")
        entity = self._labels[variable]
        if entity is None:
            if name != "id":
                raise InvalidRequest(f"{variable}.{name}: give the node a label, as in ({variable}:Label)")
            return _Property(variable, None, None, f"properties({quoted(variable)}).{quoted('rid')}")
        spec = self._registry.entity(entity)
        owner = f"{quoted(variable)}.{quoted(entity)}"
        if name in ("id", spec.key):
            return _Property(variable, entity, None, f"{owner}.{quoted('rid')}")
        found = next((column for column in spec.filter_columns if column.field == name), None)
        if found is None:
            known = ", ".join(["id", *(column.field for column in spec.filter_columns)])
            raise InvalidRequest(f"{variable}.{name} is not in the graph; {entity} has: {known}")
        return _Property(variable, entity, spec.columns[name], f"{owner}.{quoted(found.column)}")

    def _number(self, *, negative: bool = False) -> int | float:
        raw = self._token.text
        self._at += 1
        value = int(raw) if raw.isdecimal() else float(raw)
        return -value if negative else value

    def _integer(self) -> int:
        value = self._number()
        if not isinstance(value, int):
            raise InvalidRequest(f"expected a whole number, got {value}")
        return value

    # ---- RETURN ------------------------------------------------------------------------------------------------------

    def _returned(self, head: str) -> Translated:
        self._need("RETURN")
        distinct = self._word("DISTINCT")
        items: list[str] = []
        names: list[str] = []
        aggregated = False
        while True:
            written, spelled, aggregate = self._item()
            aggregated |= aggregate
            names.append(self._name() if self._word("AS") else written)
            items.append(spelled)
            if not self._op(","):
                break
        hidden: list[str] = []
        order = self._order(items, names, hidden) if self._word("ORDER", "BY") else ""
        if hidden and (distinct or aggregated):
            raise InvalidRequest("ORDER BY after DISTINCT or an aggregate needs a returned column")
        bounds = ""
        for word in ("SKIP", "LIMIT"):
            if self._word(word):
                bounds += f" {word} {self._whole()}"
        if self._token.kind != "end":
            raise self._not_understood()
        columns = ", ".join(f"{spelled} AS c{i}" for i, spelled in enumerate([*items, *hidden]))
        statement = f"{head}RETURN {'DISTINCT ' if distinct else ''}{columns}{order}{bounds}"
        return Translated(statement, (*names, *(f"\0{i}" for i in range(len(hidden)))))

    def _item(self) -> tuple[str, str, bool]:
        """One returned thing: as written, as the store spells it, whether it aggregates."""
        call = self._tokens[self._at + 1].text == "("
        if self._token.kind != "word" or not call:
            of = self._operand()
            if isinstance(of, _Value):
                raise self._not_understood()
            return f"{of.variable}.{self._tokens[self._at - 1].text.strip('`')}", of.spelled, False
        function = self._name().lower()
        self._need_op("(")
        if function == "length":
            path = self._variable()
            if path not in self._paths:
                raise InvalidRequest(f"{path!r} is no path of the pattern")
            self._need_op(")")
            return f"length({path})", f"length({quoted(path)})", False
        if function not in _AGGREGATES:
            raise InvalidRequest(f"{function}() is not part of the portable subset")
        written, spelled = self._argument(function)
        self._need_op(")")
        return f"{function}({written})", f"{function}({spelled})", True

    def _argument(self, function: str) -> tuple[str, str]:
        if function == "count" and self._op("*"):
            return "*", "*"
        distinct = "DISTINCT " if self._word("DISTINCT") else ""
        if function == "count" and self._tokens[self._at + 1].text == ")":
            variable = self._variable()
            if variable not in self._labels:
                raise InvalidRequest(f"{variable!r} is no node of the pattern")
            return distinct + variable, distinct + quoted(variable)
        of = self._operand()
        if isinstance(of, _Value):
            raise self._not_understood()
        return f"{distinct}{of.variable}.{self._tokens[self._at - 1].text}", distinct + of.spelled

    def _order(self, items: Sequence[str], names: Sequence[str], hidden: list[str]) -> str:
        keys: list[str] = []
        while True:
            if self._token.text in names and self._tokens[self._at + 1].text != ".":
                column = names.index(self._name())
            else:
                _, spelled, _ = self._item()
                if spelled not in items:
                    hidden.append(spelled)
                column = items.index(spelled) if spelled in items else len(items) + len(hidden) - 1
            descending = self._word("DESC") or self._word("DESCENDING")
            if not descending and not self._word("ASC"):
                self._word("ASCENDING")
            keys.append(f"c{column} {'DESC' if descending else 'ASC'}")
            if not self._op(","):
                return f" ORDER BY {', '.join(keys)}"

    def _whole(self) -> int:
        of = self._operand()
        if not isinstance(of, _Value) or isinstance(of.value, bool) or not isinstance(of.value, int) or of.value < 0:
            raise InvalidRequest("SKIP and LIMIT need a whole number")
        return of.value


def _scan(query: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(query):
        found = _TOKEN.match(query, at)
        if found is None:
            raise InvalidRequest(f"the graph query is not understood near {query[at : at + 20]!r}")
        if found.lastgroup != "space":
            tokens.append(_Token(str(found.lastgroup), found.group()))
        at = found.end()
    return [*tokens, _Token("end", ""), _Token("end", "")]


def _unescape(body: str) -> str:
    def plain(found: re.Match[str]) -> str:
        code, char = found.groups()
        return chr(int(code, 16)) if code else _STRING_ESCAPES.get(char, char)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", plain, body, flags=re.DOTALL)
