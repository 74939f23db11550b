"""The stand-in answers as the recorded 3.8.0 server did, and the adapter's own statements are on file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nebula3.common.ttypes import ErrorCode
from nebula3.Config import Config, SessionPoolConfig
from nebula3.Exception import AuthFailedException, IOErrorException
from nebula3.gclient.net import ConnectionPool
from nebula3.gclient.net.base import _build_byte_param
from nebula3.gclient.net.Session import Session
from nebula3.gclient.net.SessionPool import SessionPool
from standins.nebula import Server
from standins.nebula.lexer import NgqlError, tokenize
from standins.nebula.parser import parse
from standins.nebula.scenario import record
from standins.nebula.shapes import shape

from recall.planes.nebula_replay import read_shapes, replay
from recall.settings import NebulaSettings

RECORDED = Path(os.environ.get("RECALL_DATA", "../shared/data")).parent / "nebula" / "recorded.jsonl"
REFUSAL = "stand-in does not understand"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    """A session of the client library's own pool."""
    config = Config()
    config.timeout = 5000
    pool = ConnectionPool()
    assert pool.init([("127.0.0.1", server.port)], config)
    session = pool.get_session("root", "nebula")
    yield session
    session.release()
    pool.close()


def answer(session: Session, entry: dict[str, Any]) -> dict[str, Any]:
    """What the server answers, in the form of the recording."""
    params = entry.get("params")
    found = session.execute_parameter(entry["stmt"], _build_byte_param(params) if params else None)
    if not found.is_succeeded():
        return {"ok": False, "code": found.error_code(), "error": found.error_msg()}
    rows = [[_plain(cell) for cell in found.row_values(index)] for index in range(found.row_size())]
    return {"ok": True, "columns": found.keys(), "rows": rows}


def _plain(cell: Any) -> Any:
    if cell.is_null() or cell.is_empty():
        return None
    if cell.is_vertex():
        node = cell.as_node()
        return {"vertex": _plain(node.get_id()), "tags": node.tags()}
    if cell.is_edge():
        edge = cell.as_relationship()
        ends = {"src": _plain(edge.start_vertex_id()), "dst": _plain(edge.end_vertex_id())}
        return {"edge": edge.edge_name(), **ends, "rank": edge.ranking()}
    if cell.is_path():
        path = cell.as_path()
        nodes = [_plain(node.get_id()) for node in path.nodes()]
        return {"path": nodes, "rels": [edge.edge_name() for edge in path.relationships()]}
    if cell.is_list():
        return [_plain(item) for item in cell.as_list()]
    return cell.cast()


def _same(expected: dict[str, Any], got: dict[str, Any]) -> bool:
    if not expected["ok"]:
        return got == {"ok": False, "code": expected["code"], "error": expected["error"]}
    if not got["ok"] or got["columns"] != expected["columns"]:
        return False
    if expected["ordered"]:
        return bool(got["rows"] == expected["rows"])
    return sorted(map(_key, got["rows"])) == sorted(map(_key, expected["rows"]))


def _key(row: object) -> str:
    return json.dumps(row, sort_keys=True)


@pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not there: set RECALL_DATA")
def test_every_recorded_statement_is_answered_as_the_real_server_did(session: Session) -> None:
    claimed, refused, different = [], [], []
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["name"] == "lookup after rebuild":
            # The recording says what came after a rebuild, not the rebuild itself.
            session.execute("REBUILD TAG INDEX `asset_tenant`")
        got = answer(session, entry)
        if not got["ok"] and REFUSAL in got["error"]:
            refused.append(entry["name"])
        elif _same(entry, got):
            claimed.append(entry["name"])
        else:
            different.append((entry["name"], got))
    assert different == []
    print(f"claimed {len(claimed)}, refused {len(refused)}: {refused}")
    assert (len(claimed), refused) == (93, [])


@pytest.mark.parametrize(
    "statement",
    [
        "OPTIONAL MATCH (n) RETURN n",
        "MATCH (n:a) WITH n RETURN n",
        'UPDATE VERTEX ON `a` "x" SET b = 1',
        "CREATE USER u",
        'FIND ALL PATH FROM "a" TO "b" OVER * UPTO 3 STEPS YIELD path AS p',
        "MATCH (n:a)-[*]->(m) RETURN id(m)",
        "SHOW HOSTS",
        "YIELD sin(1) AS x",
        "DROP TAG `a`",
    ],
)
def test_what_it_does_not_claim_it_refuses(session: Session, statement: str) -> None:
    got = session.execute(statement)
    assert (got.error_code(), REFUSAL in got.error_msg()) == (ErrorCode.E_SYNTAX_ERROR, True)


@pytest.mark.parametrize(
    "statement",
    [
        'GO FROM "a" OVER `e` YIELD dst(edge) AS d garbage',
        'GO FROM "a" OVER `e` WHERE YIELD dst(edge) AS d',
        'INSERT VERTEX `a`(`b`) VALUES "x":(1',
        "INSERT VERTEX `a`(`b`) VALUES $x:(1)",
        'INSERT VERTEX `a.b`(`b`) VALUES "x":(1)',
        'YIELD "open',
        'YIELD "line\nbreak" AS x',
        'FETCH PROP ON `a` "x" YIELD AS y',
        "USE order",
        "YIELD 1 == AS x",
        "\ufeffYIELD 1 AS x",
    ],
)
def test_malformed_statements_are_syntax_errors(statement: str) -> None:
    with pytest.raises(NgqlError) as caught:
        parse(statement)
    assert caught.value.code == ErrorCode.E_SYNTAX_ERROR
    assert REFUSAL not in caught.value.text


def test_strings_lose_what_the_real_scanner_loses() -> None:
    assert [token.value for token in tokenize(r'"a\nb\"\\\u4e2d\000" ' + '"a\0b"')][:2] == ['a\nb"\\中\0', "a\0\0"]
    with pytest.raises(NgqlError):
        tokenize(r'"\8"')


def test_text_beyond_the_limit_is_refused_and_parameters_are_not(session: Session) -> None:
    long = "x" * 4_200_000
    got = session.execute(f'YIELD "{long}" AS x')
    assert "Query is too large" in got.error_msg()
    assert session.execute_parameter("YIELD size($x) AS n", _build_byte_param({"x": long})).is_succeeded()


def test_the_client_librarys_session_pool_works_and_its_errors_arise(server: Server, session: Session) -> None:
    session.execute("CREATE SPACE `s`(vid_type=FIXED_STRING(8))")
    pool = SessionPool("root", "nebula", "s", [("127.0.0.1", server.port)])
    assert pool.init(SessionPoolConfig())
    assert pool.execute("CREATE TAG IF NOT EXISTS `t`(`p` string)").is_succeeded()
    pool.close()
    wrong = ConnectionPool()
    wrong.init([("127.0.0.1", server.port)], Config())
    with pytest.raises(AuthFailedException, match="Invalid password"):
        wrong.get_session("root", "wrong")
    server.expire_sessions()
    assert session.execute("YIELD 1 AS x").error_code() == ErrorCode.E_SESSION_INVALID
    server.stop()
    with pytest.raises(IOErrorException):
        session.execute("YIELD 1 AS x")
    server.start()
    wrong.close()


def test_the_file_of_shapes_is_what_the_adapter_emits() -> None:
    now = {_key(entry) for entry in record()}
    filed = {
        _key(
            {
                "name": one.name,
                "space": one.space,
                "stmt": one.statement,
                **({"params": dict(one.params)} if one.params else {}),
                "columns": list(one.columns),
                "rows": [list(row) for row in one.rows],
                "ordered": one.ordered,
            }
        )
        for one in read_shapes()
    }
    regenerate = "run `PYTHONPATH=tests python -m standins.nebula.scenario`"
    assert now == filed, regenerate


def test_the_file_of_shapes_replays_without_a_difference_and_leaves_nothing(server: Server) -> None:
    report = replay(_settings(server))
    assert report.differences == ()
    assert report.asked == len(read_shapes())
    assert server.catalogue.spaces == {}
    assert server.open_sessions <= 1


def test_a_cluster_that_answers_otherwise_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from standins.nebula import evaluation

    monkeypatch.setitem(evaluation.FUNCTIONS, "rank", lambda value: 1)
    differences = replay(_settings(server)).differences
    assert differences
    assert any("rank(edge)" in difference.statement for difference in differences)


def test_a_schema_that_spreads_late_does_not_fail_the_replay() -> None:
    with Server(delay_s=0.05) as server:
        assert replay(_settings(server, heartbeat_s=0.1)).differences == ()


def _settings(server: Server, **options: object) -> NebulaSettings:
    raw = {"kind": "nebula", "addresses": [server.address], "heartbeat_s": 0, **options}
    return NebulaSettings.model_validate(raw)


def test_shapes_tell_statements_apart_by_what_matters() -> None:
    one = shape('GO FROM "a","b" OVER `e` WHERE $$.`t`.`p` == "x" AND $$.`t`.`q` IN [1, 2] YIELD dst(edge) AS d')
    same = shape('GO FROM "c" OVER `f`, `g` WHERE $$.`u`.`r` IN [3] AND ($$.`u`.`s` == true) YIELD dst(edge) AS d')
    other = shape('GO FROM "a" OVER `e` WHERE $$.`t`.`p` != "x" YIELD dst(edge) AS d')
    assert one == same
    assert one[0] == other[0]
    assert one[1] != other[1]
