"""nGQL text that the adapter writes: literals, filters, and the portable query subset in NebulaGraph's dialect."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standins.nebula.evaluation import Scope, compile_expression
from standins.nebula.lexer import tokenize
from standins.nebula.parser import parse
from standins.nebula.storage import Space
from standins.nebula.syntax import Const, InsertVertex, Yield

from recall.errors import ConfigError, Forbidden, InvalidRequest, UnknownEntity
from recall.keys import store_key
from recall.planes.conformance.corpus import FILTERS, parsed
from recall.planes.conformance.data import conformance_registry
from recall.planes.nebula_cypher import Translated, translate
from recall.planes.nebula_filters import push_down
from recall.planes.nebula_schema import tag_properties
from recall.planes.nebula_text import inserts, literal, owner_rank, quoted, space_name, text
from recall.readonly import check
from recall.rows import Caller, Json
from recall.where import matches

REGISTRY = conformance_registry()
TENANT = Caller("acme")
TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


def value_of(expression: str) -> object:
    (statement,) = parse(f"YIELD {expression} AS x")
    assert isinstance(statement, Yield)
    return compile_expression(statement.columns[0].of, {})(Scope(Space("s", 32, 0.0)))


@settings(deadline=None)
@given(TEXTS)
def test_any_text_is_one_literal_that_reads_back_the_same(value: str) -> None:
    tokens = tokenize(text(value))
    assert [(token.kind, token.value) for token in tokens] == [("string", value), ("end", None)]


@settings(deadline=None)
@given(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_any_scalar_reads_back_the_same(value: bool | int | float | None) -> None:
    got = value_of(literal(value))
    assert got == value
    assert type(got) is type(value)
    if isinstance(value, float):
        assert "e" not in literal(value)
        assert math.copysign(1, value) == math.copysign(1, float(str(got)))


@pytest.mark.parametrize("name", ["", "a.b", "a`b", "a b", "ключ", "a\nb"])
def test_only_plain_names_become_identifiers(name: str) -> None:
    with pytest.raises(ConfigError):
        quoted(name)


@settings(deadline=None)
@given(st.lists(st.tuples(TEXTS, st.integers(-5, 5)), max_size=30), st.integers(1, 7), st.integers(1, 200))
def test_insert_batches_hold_every_row_once_within_their_bounds(
    rows: list[tuple[str, int]], max_rows: int, max_bytes: int
) -> None:
    keyed = [(text(f"{index:032x}"), row) for index, row in enumerate(rows)]
    batches = list(inserts("INSERT VERTEX `t`(`a`,`b`)", keyed, max_rows, max_bytes))
    read: list[tuple[object, ...]] = []
    for batch in batches:
        (statement,) = parse(batch.text)
        assert isinstance(statement, InsertVertex)
        assert len(statement.rows) <= max_rows
        assert len(statement.rows) == 1 or len(batch.text.encode()) <= max_bytes + 60
        for _, values in statement.rows:
            read.append(tuple(value.value for value in values if isinstance(value, Const)))
    assert read == rows


def test_long_texts_are_parameters_of_the_statement_that_names_them() -> None:
    long = ["x" * 70_000, "y" * 70_000]
    rows = [(text("a"), (long[0],)), (text("b"), ("short",)), (text("c"), (long[1],))]
    batches = list(inserts("INSERT VERTEX `t`(`a`)", rows, 2, 1000))
    assert [list(batch.params.values()) for batch in batches] == [[long[0]], [long[1]]]
    assert all(len(batch.text) < 200 for batch in batches)


def test_ranks_tell_owners_of_the_same_edge_apart() -> None:
    source, one, other = (store_key("acme", "item", name) for name in "abc")
    assert owner_rank(source, source) == 0
    assert len({owner_rank(one, source), owner_rank(other, source), 0}) == 3
    assert all(0 <= owner_rank(owner, source) < 2**63 for owner in (one, other))


def test_spaces_are_named_by_graph_version_and_when_dedicated_by_tenant() -> None:
    shared = space_name("recall", REGISTRY, None)
    assert shared == f"recall_{REGISTRY.graph_version()}"
    own = {space_name("recall", REGISTRY, tenant) for tenant in ("a-b", "a_b", "A_b")}
    assert len(own) == 3
    assert all(quoted(name) and name.startswith(shared) for name in own)


# ---- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", FILTERS, ids=str)
def test_a_pushed_filter_never_rejects_a_row_that_matches(raw: dict[str, object]) -> None:
    where = parsed(raw, REGISTRY, ["item", "place"])
    assert where is not None
    item = REGISTRY.entity("item")
    columns = {column.field: column.column for column in item.filter_columns}
    space = Space("s", 32, 0.0)
    values: tuple[Json, ...] = (None, "open", "50%_off", "line1\nline2", 7, 5, 5.000000001, True, "2026-01-10")
    for value in values:
        row = {name: value for name in columns if _fits(item.columns[name].type, value)}
        space.vertices["v"] = {"item": {columns[name]: row.get(name) for name in columns}}
        pushed = push_down(where, item)
        (statement,) = parse(f'GO FROM "v" OVER `AT` WHERE {pushed.text} YIELD dst(edge) AS d')
        passes = compile_expression(statement.where, {})(Scope(space, reached="v")) is True  # type: ignore[union-attr]
        assert passes or not matches(where, row)
        if pushed.exact:
            assert passes == matches(where, row)


def _fits(kind: str, value: Json) -> bool:
    if kind in ("int", "float"):
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and (kind == "float") == isinstance(value, float)
        )
    return isinstance(value, bool) if kind == "bool" else isinstance(value, str)


def test_floats_are_never_decided_by_the_server() -> None:
    """It takes 1.000000001 and 1.0 for equal."""
    where = parsed({"cost": {"gt": 1.0}}, REGISTRY, ["item"])
    assert where is not None
    pushed = push_down(where, REGISTRY.entity("item"))
    assert (pushed.exact, ">=" in pushed.text) == (False, True)


def test_an_entity_without_the_field_has_a_null_there() -> None:
    link = REGISTRY.entity("link")
    for raw, expected in (
        ({"title": {"isnull": True}}, "true"),
        ({"title": {"isnull": False}}, "false"),
        ({"title": "x"}, "false"),
    ):
        where = parsed(raw, REGISTRY, ["item"])
        assert where is not None
        assert push_down(where, link).text == expected


def test_only_rows_of_an_edge_table_remember_what_they_own() -> None:
    owning = [name for name, entity in REGISTRY.entities.items() if "owned" in {p.name for p in tag_properties(entity)}]
    assert owning == ["link"]


# ---- queries ---------------------------------------------------------------------------------------------------------


def ask(query: str, params: dict[str, Json] | None = None, caller: Caller = TENANT, limit: int = 100) -> Translated:
    found = translate(query, params or {}, REGISTRY, caller, limit)
    parse(found.text)
    return found


def test_the_portable_form_starts_from_a_vertex_id() -> None:
    found = ask(
        "MATCH (n:item {id: $id})-[:AT|:NEAR*1..2]->(m:place) WHERE m.status = 'open' RETURN m.id AS id", {"id": "a"}
    )
    assert found.names == ("id",)
    assert found.text == (
        "MATCH (`n`:`item`)-[:`AT`|`NEAR`*1..2]->(`m`:`place`) "
        f'WHERE id(`n`) == "{store_key("acme", "item", "a")}" AND (`m`.`place`.`s_status` == "open") '
        "RETURN `m`.`place`.`rid` AS c0 LIMIT 100"
    )


def test_the_form_that_every_plane_understands_is_understood() -> None:
    query = "MATCH (n:`item` {id: $id})-[:`HAS`|:`AT`*1..3]->(m:`place`) RETURN DISTINCT m.id ORDER BY m.id"
    found = ask(query, {"id": 'it\'s "a"'})
    assert found.names == ("m.id",)
    assert "DISTINCT" in found.text
    assert found.text.endswith("ORDER BY c0 ASC LIMIT 100")


def test_values_are_escaped_wherever_they_stand() -> None:
    evil = 'x" OR true //\n\\'
    for query in (
        "MATCH (n:item) WHERE n.title = $v RETURN n.id",
        "MATCH (n:item) WHERE n.title IN [$v, 'b'] RETURN n.id",
        "MATCH (n:item) WHERE n.title CONTAINS $v RETURN n.id",
        "MATCH (n:item {title: $v}) RETURN n.id",
    ):
        found = ask(query, {"v": evil})
        assert next(token.value for token in tokenize(found.text) if token.kind == "string") == evil
        assert "true" not in [token.text for token in tokenize(found.text) if token.kind == "name"]


def test_a_scope_confines_every_node_of_the_way() -> None:
    found = ask("MATCH (n:item {id: 'a'})-[:HAS*1..3]->(m:item) RETURN m.id", caller=Caller("acme", "s1"))
    assert found.text.count('== "s1"') == 3
    assert "all(x IN nodes(`recall_path`)" in found.text


def test_values_take_the_form_that_the_store_holds() -> None:
    found = ask("MATCH (n:item) WHERE n.seen >= '2026-01-02T00:00:00+02:00' RETURN n.id")
    assert '"2026-01-01T22:00:00.000000Z"' in found.text
    with pytest.raises(InvalidRequest, match="expected int"):
        ask("MATCH (n:item) WHERE n.amount = 'seven' RETURN n.id")


def test_order_by_something_that_is_not_returned_adds_a_hidden_column() -> None:
    found = ask("MATCH (n:item) RETURN n.id AS id ORDER BY n.amount DESC, id LIMIT 5")
    assert found.names == ("id", "\0" + "0")
    assert found.text.endswith("ORDER BY c1 DESC, c0 ASC LIMIT 5")


def test_the_row_limit_is_forced() -> None:
    assert ask("MATCH (n:item) RETURN n.id LIMIT 500", limit=7).text.endswith("LIMIT 7")
    assert ask("GO FROM $k OVER `AT` YIELD id($$) AS d", {"k": {"entity": "item", "id": "a"}}, limit=7).text.endswith(
        "LIMIT 7"
    )


def test_a_comment_does_not_hide_the_row_limit() -> None:
    found = ask("GO FROM $k OVER `AT` YIELD id($$) AS d // all of them", {"k": "f" * 32}, limit=7)
    assert [token.text for token in tokenize(found.text)][-4:] == ["|", "LIMIT", "7", ""]


def test_the_guard_reads_each_language_as_its_own() -> None:
    check('GO FROM "a" OVER AT YIELD dst(edge) AS id | LIMIT 3')
    check("MATCH (n:item) RETURN n.id")
    for query in (
        "GO FROM 'a' OVER AT YIELD 1 AS x | DELETE VERTEX 'a'",
        "MATCH (n) RETURN n | SHOW SPACES",
        "SHOW SPACES",
    ):
        with pytest.raises(Forbidden):
            check(query)


def test_ngql_may_name_rows_by_entity_and_id() -> None:
    found = ask(
        'GO FROM $k OVER `AT` WHERE properties($$).rid != "$k" YIELD id($$) AS d', {"k": {"entity": "item", "id": "a"}}
    )
    assert f'FROM "{store_key("acme", "item", "a")}"' in found.text
    assert '"$k"' in found.text
    assert translate(
        "GO FROM $k OVER `AT` WHERE properties(edge).version == $v YIELD 1 AS x",
        {"k": "f" * 32, "v": 3},
        REGISTRY,
        TENANT,
        5,
    ).params == {"v": 3}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("MATCH (n:nope) RETURN n.id", "unknown entity 'nope'"),
        ("MATCH (n:item)-[:NOPE]->(m:item) RETURN m.id", "unknown relation 'NOPE'"),
        ("MATCH (n:item)-[:HAS*]->(m:item) RETURN m.id", "upper bound"),
        ("MATCH (n:item)-[:HAS*1..]->(m:item) RETURN m.id", "upper bound"),
        ("MATCH (n:item)-[:HAS*1..50]->(m:item) RETURN m.id", "within 10"),
        ("MATCH (n:item) WHERE n.body = 'x' RETURN n.id", "is not in the graph"),
        ("MATCH (n:item) RETURN n", "near"),
        ("MATCH (n:item) RETURN m.id", "no node of the pattern"),
        ("MATCH (n:item)-[:HAS]->(m) RETURN m.title", "label"),
        ("MATCH (n:item), (m:item) RETURN m.id", "near"),
        ("MATCH (n:item RETURN", "near"),
        ("MATCH (n:item) WHERE n.id = $id RETURN n.id", r"\$id is used and not given"),
        ("MATCH (n:item) WHERE n.id = 3 RETURN n.id", "is a text"),
        ("MATCH (n:item) RETURN DISTINCT n.title ORDER BY n.amount", "needs a returned column"),
        ("MATCH (n:item) RETURN sin(n.amount)", "portable subset"),
        ("MATCH (n:item) WHERE exists(n.id) RETURN n.id", "near"),
        ("OPTIONAL MATCH (n:item) RETURN n.id", "near"),
    ],
)
def test_what_is_not_understood_is_named(query: str, message: str) -> None:
    with pytest.raises((InvalidRequest, UnknownEntity), match=message):
        ask(query)


@pytest.mark.parametrize(
    "query",
    [
        "MATCH (n:item) DELETE n",
        "MATCH (n:item) SET n.title = 'x' RETURN n.id",
        "GO FROM 'a' OVER `AT` YIELD id($$) AS d; DROP SPACE x",
        "GO FROM 'a' OVER `AT` YIELD id($$) AS d | DELETE VERTEX $-.d",
        "USE other; MATCH (n) RETURN n",
        "INSERT VERTEX `item`(`rid`) VALUES 'a':('b')",
        "FETCH PROP ON `item` 'a' YIELD vertex AS v -- DROP",
    ],
)
def test_what_writes_or_leaves_the_space_is_forbidden(query: str) -> None:
    with pytest.raises(Forbidden):
        ask(query)


def test_ngql_is_forbidden_to_a_caller_of_one_scope() -> None:
    with pytest.raises(Forbidden, match="scope"):
        ask("GO FROM 'a' OVER `AT` YIELD id($$) AS d", caller=Caller("acme", "s1"))
