"""init → import → backfill → show → query → tools → doctor, through the real commands on embedded stores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from recall.cli import app

ENTITIES = """
entities:
  asset:
    columns:
      name: string
      notes: string
      kind: { type: string, filterable: true }
      site: string
    search: { fields: [name, notes] }
    embed: { fields: [name, notes] }
    edges:
      - { field: site, rel: LOCATED_AT, target: site }
  site:
    columns: { name: string }
    search: { fields: [name] }
"""
ASSETS = [
    {"id": "p1", "name": "Pump 1", "notes": "overheating bearing in the north hall", "kind": "pump", "site": "s1"},
    {"id": "p2", "name": "Pump 2", "notes": "runs quietly", "kind": "pump", "site": "s2"},
    {"id": "v1", "name": "Valve 1", "notes": "leaks when overheating", "kind": "valve", "site": "s1"},
    {"id": "bad", "name": 7},
]
SITES = [{"id": "s1", "name": "North"}, {"id": "s2", "name": "South"}]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("round")
    (folder / "entities.yaml").write_text(ENTITIES)
    (folder / "recall.yaml").write_text(
        "data_dir: data\nentities: entities.yaml\nembedder: { kind: hash }\n"
        "recall: { timeout_ms: 60000, channel_timeout_ms: 30000, hydrate_timeout_ms: 30000 }\n"
    )
    (folder / "asset.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ASSETS))
    (folder / "site.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SITES))
    return folder


@pytest.fixture
def recall(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in ("RECALL_CONFIG", "RECALL_DATA_DIR", "RECALL_ENTITIES", "RECALL_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(place)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def answer(result: Result, status: int = 0) -> dict[str, Any]:
    assert result.exit_code == status, result.output + repr(result.exception)
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.fixture(scope="module")
def loaded(place: Path) -> dict[str, Any]:
    """The answer of one import with a backfill; everything below reads what it left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("RECALL_CONFIG", raising=False)
        result = CliRunner().invoke(
            app, ["import", "asset.jsonl", "site=site.jsonl", "-t", "acme", "--backfill", "--json"]
        )
    return answer(result, status=3)


pytestmark = [pytest.mark.ray]


def test_one_bad_row_is_status_3_and_a_dead_letter(loaded: dict[str, Any]) -> None:
    report = loaded["import"]
    assert (report["rows"], report["written"], report["failed"], report["tenants"]) == (6, 5, 1, ["acme"])
    (letter,) = Path(report["dead_letters"]).read_text().splitlines()
    assert "name" in json.loads(letter)["reason"]
    (filled,) = loaded["backfill"]
    assert (filled["tenant"], filled["failed"], filled["errors"]) == ("acme", 0, [])


def test_show_counts_rows_per_plane_and_entity(loaded: dict[str, Any], recall: Callable[..., Result]) -> None:
    contents = answer(recall("show", "--json"))
    counts = contents["tenants"]["acme"]
    assert counts["rows"] == {"asset": 3, "site": 2}
    assert counts["vector"] == {"asset": 3}
    assert counts["search"] == {"asset": 3, "site": 2}
    assert counts["graph"] == {"asset": 3, "site": 2}
    assert all(size > 0 for size in contents["bytes"].values())
    text = recall("show").stdout
    assert "tenant acme" in text
    assert contents["versions"]["vector"] in text


def test_a_query_finds_words_and_follows_links(loaded: dict[str, Any], recall: Callable[..., Result]) -> None:
    pack = answer(recall("query", "overheating bearing", "-t", "acme", "--entity", "asset", "--explain", "--json"))
    found = {(item["entity"], item["id"]): item for item in pack["items"]}
    assert pack["items"][0]["id"] == "p1"
    assert "graph" in found["site", "s1"]["source"]
    assert pack["warnings"] == []
    shown = recall("query", "overheating bearing", "-t", "acme", "--entity", "asset", "--explain").stdout
    assert "asset:p1 -LOCATED_AT-> site:s1" in shown
    assert "of 2000 tokens" in shown


def test_options_of_a_query_reach_the_engine(loaded: dict[str, Any], recall: Callable[..., Result]) -> None:
    asked = ["query", "overheating", "-t", "acme", "-e", "asset", "--json"]
    filtered = answer(recall(*asked, "--filters", '{"kind": "valve"}', "--hops", "0"))
    assert {item["id"] for item in filtered["items"]} == {"v1"}
    tight = answer(recall(*asked, "--budget", "1"))
    assert (tight["items"], tight["omitted"] > 0) == ([], True)
    lexical = answer(
        recall(*asked, "--channels", "search=1,vector=0,graph=0", "--fusion", "convex", "--packer", "fill")
    )
    assert {tuple(item["source"]) for item in lexical["items"]} == {("search",)}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--filters", "{"], "invalid_request"),
        (["--filters", '{"nope": 1}'], "invalid_filter"),
        (["--entity", "nope"], "unknown_entity"),
        (["--channels", "vector"], "invalid_request"),
        (["--budget", "0"], "invalid_request"),
        (["--tenant", "a b"], "invalid_request"),
    ],
)
def test_a_wrong_option_is_one_line(
    loaded: dict[str, Any], recall: Callable[..., Result], options: list[str], code: str
) -> None:
    result = recall("query", "pump", "-t", "acme", *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {code}: ")


def test_tools_take_options_or_a_body(loaded: dict[str, Any], recall: Callable[..., Result]) -> None:
    by_option = answer(recall("tool", "search", "--entity", "asset", "--query", "leaks", "-t", "acme", "--json"))
    by_body = answer(recall("tool", "search", '{"entity": "asset", "query": "leaks"}', "-t", "acme", "--json"))
    assert [hit["id"] for hit in by_option["hits"]] == ["v1"]
    assert by_option == by_body
    row = recall("tool", "get", "--entity", "site", "--id", "s1", "-t", "acme")
    assert "North" in row.stdout
    similar = answer(
        recall("tool", "vector_similar", "--entity", "asset", "--query", "pump", "--k", "2", "-t", "acme", "--json")
    )
    assert len(similar["hits"]) == 2
    cypher = "MATCH (a:asset)-[:LOCATED_AT]->(s:site) RETURN s.id AS site, count(*) AS n ORDER BY n DESC"
    walked = recall("tool", "graph_traverse", "--query", cypher, "-t", "acme", "--json")
    assert answer(walked)["rows"][0] == {"site": "s1", "n": 2}


def test_another_tenant_has_nothing(loaded: dict[str, Any], recall: Callable[..., Result]) -> None:
    result = recall("tool", "get", "--entity", "site", "--id", "s1", "-t", "other")
    assert (result.exit_code, result.stderr.startswith("error: not_found:")) == (1, True)


def test_an_unchanged_backfill_changes_nothing(loaded: dict[str, Any], recall: Callable[..., Result]) -> None:
    (again,) = answer(recall("backfill", "-t", "acme", "--plane", "search", "--json"))["backfill"]
    (lane,) = again["lanes"]
    assert (lane["staged"]["rows"], lane["staged"]["changed"], lane["staged"]["unchanged"]) == (5, 0, 5)


def test_doctor_passes_on_what_works_and_fails_on_a_changed_model(
    loaded: dict[str, Any], recall: Callable[..., Result], place: Path
) -> None:
    healthy = answer(recall("doctor", "--json"))
    states = {finding["check"]: finding["status"] for finding in healthy["findings"]}
    assert all(states[check] == "ok" for check in ("settings", "entity file", "rows store", "graph store", "tenants"))
    (place / "other.yaml").write_text("data_dir: data\nentities: entities.yaml\nembedder: { kind: hash, dim: 32 }\n")
    broken = answer(recall("doctor", "--config", "other.yaml", "--json"), status=1)
    (mismatch,) = [finding for finding in broken["findings"] if finding["check"] == "tenant acme"]
    assert "hash" in mismatch["detail"]
    assert "recall backfill --tenant acme" in mismatch["advice"]
