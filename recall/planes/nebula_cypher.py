"""Queries of `graph_traverse` in NebulaGraph's dialect: the portable openCypher subset is translated, nGQL is bounded.

Portable: one `MATCH` pattern of labelled nodes and (bounded) relations, `WHERE`, `RETURN`, `ORDER BY`, `SKIP`, `LIMIT`.
`n.id` is a row id: tests for equality become tests on the vertex id, from which the server can start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recall.errors import Forbidden, InvalidRequest
from recall.keys import store_key
from recall.planes.nebula_terms import Terms, Value
from recall.planes.nebula_text import Scalar, literal, quoted, text
from recall.readonly import bounded_cypher, check_ngql
from recall.registry import Registry
from recall.rows import Caller, Json

MAX_HOPS = 10
_NATIVE = frozenset({"GO", "FETCH", "LOOKUP", "FIND", "GET", "YIELD"})
_AGGREGATES = frozenset({"count", "collect", "min", "max", "sum", "avg"})
_KEY = re.compile(r"[0-9a-f]{32}")


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
    # On a line of its own, so that a comment at the end does not swallow it.
    return Translated(f"{spliced}\n| LIMIT {limit}", (), rest)


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


class _Translator(Terms):
    def __init__(self, query: str, params: Mapping[str, Json], registry: Registry, caller: Caller) -> None:
        super().__init__(query, params, registry, caller)
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
            if isinstance(of, Value):
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
        if isinstance(of, Value):
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
        if not isinstance(of, Value) or isinstance(of.value, bool) or not isinstance(of.value, int) or of.value < 0:
            raise InvalidRequest("SKIP and LIMIT need a whole number")
        return of.value
