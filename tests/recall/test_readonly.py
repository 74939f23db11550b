"""The read-only guard: what passes, what is refused by name, and that no spelling of a write gets through."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from recall.errors import Forbidden, InvalidRequest
from recall.readonly import bounded_cypher, check_cypher, check_ngql, parameters, quoted

WRITES = [
    "CREATE",
    "MERGE",
    "SET",
    "DELETE",
    "DETACH",
    "REMOVE",
    "DROP",
    "ALTER",
    "INSERT",
    "UPSERT",
    "COPY",
    "LOAD",
    "CALL",
    "ATTACH",
    "USE",
    "INSTALL",
    "EXPORT",
    "IMPORT",
    "FOREACH",
    "UNION",
    "BEGIN",
    "COMMIT",
    "CHECKPOINT",
]

READING = (
    "MATCH (n:item {id: $id})-[:AT]->(m:place) RETURN m.id",
    "match (n) optional match (n)-[r]-(m) where n.a > 3 and not m.b in [1, 2.5, 1e3] return n, r, m order by n.a desc",
    "MATCH (n:item {id:$id})-[:AT|HAS*1..3]->(m:place) WHERE m.status = 'open' RETURN DISTINCT m.id SKIP 2 LIMIT 5",
    "MATCH p = (a:item)-[e:HAS* SHORTEST 1..4]->(b:item) RETURN p",
    "UNWIND [1,2,3] AS x WITH x WHERE x <> 2 RETURN collect(x) AS xs, count(*) AS n",
    "WITH 1 AS one RETURN CASE WHEN one = 1 THEN 'yes' ELSE 'no' END AS answer",
    "MATCH (n:item) WITH * WHERE n.x IS NOT NULL RETURN *",
    "MATCH (n:item) WHERE EXISTS { MATCH (n)-[:AT]->(:place) } RETURN n.id",
    "MATCH (n:item) WHERE n.title STARTS WITH 'a' OR n.title CONTAINS \"b\" RETURN n.title AS title ORDER BY title ASC",
    "MATCH (n:item) WHERE n.set = 1 AND n.delete <> 'please delete' RETURN n.`drop`, n.create",
    "MATCH (n:item {set: 'x', `merge`: $call}) RETURN n",
    "MATCH (n:`DELETE`)-[:SET]->(m:Drop) RETURN m.id",
    "MATCH (n:item) /* DELETE n; DROP */ RETURN n.id // SET n.x = 1",
    "MATCH (n:item) WHERE n.title = 'it\\'s; DROP TABLE item' RETURN n.id",
    "MATCH (n:item) WHERE n.title = 'ＤＥＬＥＴＥ; 😀 `' RETURN n.id",
    "MATCH (n:项目) WHERE n.名称 = '认证' RETURN n.名称",
    "RETURN {a: [1, {b: 2}], set: 3} AS value",
)
REFUSED = (
    ("CREATE (n:item {id: 'x'})", "CREATE"),
    ("MATCH (n) CrEaTe (m) RETURN m", "CREATE"),
    ("MATCH (n)/**/DELETE n", "DELETE"),
    ("MATCH (n) DETACH DELETE n", "DETACH"),
    ("MATCH (n) SET n.x = 1 RETURN n", "SET"),
    ("MATCH (n) WITH * SET n.x = 1 RETURN n", "SET"),
    ("MATCH (n) REMOVE n.x RETURN n", "REMOVE"),
    ("MATCH (n) MERGE (m:item) RETURN m", "MERGE"),
    ("MATCH (n) ＤＥＬＥＴＥ n", "DELETE"),
    ("MATCH (n) DELETE\u00a0n", "DELETE"),
    ("MATCH (n)\u2028DELETE n", "DELETE"),
    ("MATCH (n) RETURN n // x\nDELETE n", "DELETE"),
    ("MATCH (n) RETURN n // x\u2028DELETE n", "DELETE"),
    ("MATCH (n) ıNSERT n", "INSERT"),
    ("MATCH (n) ſET n.x = 1", "SET"),
    ("USE other; MATCH (n) RETURN n", "USE"),
    ("MATCH (n) RETURN n; MATCH (m) DELETE m", ";"),
    ("MATCH (n) RETURN n;", ";"),
    ("INSERT VERTEX item() VALUES 'a':()", "INSERT"),
    ("UPSERT VERTEX ON item 'a' SET x = 1", "UPSERT"),
    ("COPY item FROM 'a.csv'", "COPY"),
    ("COPY (MATCH (n) RETURN n) TO 'a.csv'", "COPY"),
    ("ATTACH 'x.db' AS x (dbtype duckdb)", "ATTACH"),
    ("LOAD FROM '/etc/passwd' RETURN *", "LOAD"),
    ("MATCH (n) LOAD FROM '/etc/passwd' RETURN *", "LOAD"),
    ("CALL show_tables() RETURN *", "CALL"),
    ("MATCH (n) CALL show_tables() RETURN *", "CALL"),
    ("CALL threads=1", "CALL"),
    ("INSTALL httpfs", "INSTALL"),
    ("EXPORT DATABASE 'x'", "EXPORT"),
    ("IMPORT DATABASE 'x'", "IMPORT"),
    ("DROP TABLE item", "DROP"),
    ("ALTER TABLE item ADD x INT64", "ALTER"),
    ("BEGIN TRANSACTION", "BEGIN"),
    ("EXPLAIN MATCH (n) RETURN n", "EXPLAIN"),
    ("PROFILE MATCH (n) DELETE n", "PROFILE"),
    ("MATCH (n) RETURN n UNION MATCH (m) RETURN m", "UNION"),
    ("MATCH (n) FOREACH (x IN [1] | SET n.x = 1)", "FOREACH"),
    ("MATCH (n) FROBNICATE n RETURN n", "FROBNICATE"),
    ("COMMENT ON TABLE item IS 'x'", "COMMENT"),
    ("GO FROM 'a' OVER AT YIELD dst(edge)", "GO"),
    ("MATCH (n) RETURN n YIELD x", "YIELD"),
    ("MATCH (n) RETURN n | SUBMIT JOB STATS", "|"),
    ("MATCH (n) OPTIONAL CREATE (m)", "OPTIONAL"),
    ("MATCH (n) DEL\u200bETE n", "U+200B"),
    ("MATCH (n) RETURN n；DROP TABLE item", "U+FF1B"),
    ("MATCH (n) WHERE n.x = ＇a＇ RETURN n", "U+FF07"),
)


@pytest.mark.parametrize("query", READING)
def test_reading_queries_pass(query: str) -> None:
    check_cypher(query)


@pytest.mark.parametrize(("query", "named"), REFUSED)
def test_anything_else_is_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        check_cypher(query)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    "query", ["", "  \n", "// nothing", "MATCH (n) WHERE n.x = 'open", "RETURN `x", "RETURN 1 /* x"]
)
def test_unreadable_text_is_an_invalid_request(query: str) -> None:
    with pytest.raises(InvalidRequest):
        check_cypher(query)


# ---- nothing gets through ------------------------------------------------------------------------------------------

_gaps = st.text(" \t\n", min_size=1, max_size=3) | st.sampled_from(
    ["/**/", " /* RETURN */ ", "/*'*/", '/*"*/', "/*`*/", "//x\n", "\n// 'y\n", "\u00a0", "\u3000", "/***/", "/* // */"]
)


def _spelt(word: str) -> st.SearchStrategy[str]:
    """`word` in any case, any letter possibly full-width."""
    letters = [
        st.sampled_from([c.lower(), c.upper(), chr(ord(c.upper()) + 0xFEE0), chr(ord(c.lower()) + 0xFEE0)])
        for c in word
    ]
    return st.tuples(*letters).map("".join)


@given(data=st.data(), word=st.sampled_from(WRITES), first=_gaps, second=_gaps)
def test_no_spelling_of_a_write_passes(data: st.DataObject, word: str, first: str, second: str) -> None:
    spelt = data.draw(_spelt(word))
    before = data.draw(
        st.sampled_from(["", "MATCH (n)", "MATCH (n:item {a: 'b'})-[r]->(m) WITH *", "MATCH (n) WHERE n.x = 1"])
    )
    after = data.draw(
        st.sampled_from(["n", "(m:item)", "n.x = 1 RETURN n", "TABLE item", "FROM 'x' RETURN *", "d() RETURN 1"])
    )
    for check in (check_cypher, check_ngql):
        with pytest.raises(Forbidden):
            check(f"{before}{first if before else ''}{spelt}{second}{after}")


@given(st.text(max_size=60), st.sampled_from(["'", '"']))
def test_no_text_bound_as_a_string_changes_the_verdict(text: str, quote: str) -> None:
    written = text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    check_cypher(f"MATCH (n:item) WHERE n.title = {quote}{written}{quote} RETURN n.id")


@given(data=st.data(), word=st.sampled_from(WRITES), around=st.text(string.ascii_letters + " ;|(", max_size=8))
def test_names_and_strings_that_hold_a_write_pass(data: st.DataObject, word: str, around: str) -> None:
    spelt = data.draw(_spelt(word))
    check_cypher(
        f"MATCH (n:`{around}{spelt}`) WHERE n.{spelt} = 'a {around} {spelt} b' RETURN n.`{spelt}{around}` AS x"
    )
    check_cypher(f"MATCH (n:item {{{spelt}: ${word}}})-[:{spelt}]->(m:{spelt}) RETURN m.{spelt}")


@given(st.sampled_from(WRITES), st.text(string.ascii_lowercase + "_", min_size=1, max_size=5))
def test_words_that_only_begin_or_end_like_a_write_pass(word: str, more: str) -> None:
    assume(f"{word}{more}".upper() not in WRITES and f"{more}{word}".upper() not in WRITES)
    check_cypher(f"MATCH ({word.lower()}{more}:item), ({more}{word.lower()}:item) RETURN {word.lower()}{more}.id")


# ---- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "bounded"),
    [
        ("MATCH (n) RETURN n", "MATCH (n) RETURN n LIMIT 10"),
        ("MATCH (n) RETURN n LIMIT 3", "MATCH (n) RETURN n LIMIT 3"),
        ("MATCH (n) RETURN n limit 99999999", "MATCH (n) RETURN n limit 10"),
        ("MATCH (n) WITH n LIMIT 3 RETURN n", "MATCH (n) WITH n LIMIT 3 RETURN n LIMIT 10"),
        ("MATCH (n) RETURN n.limit", "MATCH (n) RETURN n.limit LIMIT 10"),
        ("MATCH (n) RETURN n // LIMIT 1", "MATCH (n) RETURN n LIMIT 10"),
        ("MATCH (n)/**/RETURN/* x */n.a<=3", "MATCH (n) RETURN n.a<=3 LIMIT 10"),
        ("MATCH (n)-[:A*1..3]->(m) RETURN 'LIMIT 5'", "MATCH (n)-[:A*1..3]->(m) RETURN 'LIMIT 5' LIMIT 10"),
    ],
)
def test_every_query_is_bounded(query: str, bounded: str) -> None:
    assert bounded_cypher(query, 10) == bounded


@pytest.mark.parametrize("limit", ["$n", "-1", "2 + 3", "1e9", "5 SKIP 2", ""])
def test_a_limit_that_cannot_be_checked_is_refused(limit: str) -> None:
    with pytest.raises(InvalidRequest, match="LIMIT"):
        bounded_cypher(f"MATCH (n) RETURN n LIMIT {limit}", 10)


def test_parameters_are_told_apart_from_text() -> None:
    assert parameters("MATCH (n {id: $id}) WHERE n.a = '$no' AND n.`$no` > $最小 RETURN n // $no") == {"id", "最小"}


def test_a_query_that_returns_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="RETURN"):
        bounded_cypher("MATCH (n)", 10)


def test_bounding_refuses_what_the_guard_refuses() -> None:
    with pytest.raises(Forbidden):
        bounded_cypher("MATCH (n) DELETE n RETURN 1", 10)


# ---- nGQL and the portable form ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        'GO FROM "a" OVER AT YIELD dst(edge) AS id',
        'GO 1 TO 3 STEPS FROM "a" OVER * REVERSELY WHERE properties($$).x > 1 YIELD DISTINCT $$.item.id | LIMIT 5',
        'FETCH PROP ON item "a", "b" YIELD properties(vertex).set',
        "LOOKUP ON item WHERE item.x == 1 YIELD id(vertex) AS id | ORDER BY $-.id | LIMIT 3",
        'FIND SHORTEST PATH FROM "a" TO "b" OVER * UPTO 5 STEPS YIELD path AS p',
        'GET SUBGRAPH WITH PROP 2 STEPS FROM "a" BOTH AT YIELD VERTICES AS nodes, EDGES AS links',
        "MATCH (n:item)-[e:AT]->(m) WHERE id(n) == 'a' RETURN m.place.id LIMIT 4",
    ],
)
def test_reading_ngql_passes(query: str) -> None:
    check_ngql(query)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ('GO FROM "a" OVER AT YIELD dst(edge) AS id | DELETE VERTEX $-.id', "DELETE"),
        ('GO FROM "a" OVER AT YIELD dst(edge) AS id | SHOW SPACES', "SHOW"),
        ('INSERT EDGE AT() VALUES "a"->"b":()', "INSERT"),
        ("USE other; GO FROM 'a' OVER AT YIELD dst(edge)", "USE"),
        ("SHOW SPACES", "SHOW"),
        ("SUBMIT JOB STATS", "SUBMIT"),
        ("GET CONFIGS", "GET"),
        ("FIND x", "FIND"),
        ("GO FROM 'a' OVER AT YIELD 1 -- it's\nDELETE VERTEX 'a", "--"),
        ("GO FROM 'a' OVER AT YIELD 1 # x", "U+0023"),
    ],
)
def test_other_ngql_is_refused_by_name(query: str, named: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        check_ngql(query)
    assert named in str(refusal.value)


def test_a_long_query_is_checked_in_linear_time() -> None:
    keys = ", ".join(f"k{i}: {i}" for i in range(2000))
    started = time.perf_counter()
    check_cypher(f"RETURN {{{keys}}} AS value")
    assert time.perf_counter() - started < 1


def test_the_portable_form_passes_the_guard() -> None:
    check_cypher("MATCH (n:`item` {id: $id})-[:`AT`|:`uses-it`*1..2]->(m:`place`) RETURN DISTINCT m.id ORDER BY m.id")


@pytest.mark.parametrize("name", ["", "a`b", "```"])
def test_a_name_with_a_back_tick_is_never_an_identifier(name: str) -> None:
    with pytest.raises(InvalidRequest):
        quoted(name)
