"""import → distill → map → digest → resolve → query at an altitude, through the real commands on embedded stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from recall.cli import app

pytestmark = [pytest.mark.ray]
ENTITIES = """
entities:
  note:
    columns: { text: string, site: string }
    search: { fields: [text] }
    embed: { fields: [text] }
    distill: { fields: [text], scopes: [site] }
"""
NOTES = [{"id": f"n{i}", "text": f"pump {i} in hall {i % 2} leaks oil", "site": f"s{i % 2}"} for i in range(8)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distill")
    (folder / "entities.yaml").write_text(ENTITIES)
    (folder / "recall.yaml").write_text(
        "data_dir: data\nentities: entities.yaml\nembedder: { kind: hash }\n"
        "recall: { timeout_ms: 60000, channel_timeout_ms: 30000, hydrate_timeout_ms: 30000 }\n"
    )
    (folder / "note.jsonl").write_text("".join(json.dumps(row) + "\n" for row in NOTES))
    return folder


@pytest.fixture(scope="module")
def recall(place: Path) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("RECALL_CONFIG", "RECALL_DATA_DIR", "RECALL_ENTITIES", "RECALL_TOKENS"):
                patch.delenv(name, raising=False)
            patch.setenv("COLUMNS", "160")
            patch.chdir(place)
            return CliRunner().invoke(app, list(arguments))

    return call


def answer(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + repr(result.exception)
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.fixture(scope="module")
def distilled(recall: Callable[..., Result]) -> dict[str, Any]:
    assert recall("import", "note.jsonl", "--backfill").exit_code == 0
    return answer(recall("distill", "--json"))["distill"]


def test_distill_reports_what_it_did(distilled: dict[str, Any]) -> None:
    assert (distilled["rows"], distilled["failed"], distilled["complete"]) == (8, 0, True)
    assert distilled["written"] >= 8 + 2 + 1
    assert [lane["error"] for lane in distilled["backfill"]["lanes"]] == [None] * 3


def test_a_second_run_and_a_dry_run_find_nothing_to_do(
    distilled: dict[str, Any], recall: Callable[..., Result]
) -> None:
    said = recall("distill", "--dry-run")
    assert said.exit_code == 0
    assert "8 rows, 0 changed" in said.output
    again = answer(recall("distill", "--json"))["distill"]
    assert (again["calls"], again["written"], again["removed"], again["backfill"]) == (0, 0, 0, None)


def test_the_tree_can_be_walked(distilled: dict[str, Any], recall: Callable[..., Result]) -> None:
    nodes = answer(recall("map", "--json"))["nodes"]
    assert len(nodes) == distilled["written"]
    root = answer(recall("digest", "--rows", "100", "--json"))
    assert len(root["rows"]) == 8
    found = answer(recall("resolve", root["node"]["content_hash"], "--json"))["matches"]
    assert [match["node"]["id"] for match in found] == ["digest:2:tenant"]
    for arguments in (["map", "s0"], ["digest", "digest:1:scope:site:s0"], ["resolve", nodes[1]["sem_hash"]]):
        shown = recall(*arguments)
        assert shown.exit_code == 0
        assert "digest:" in shown.output
    assert "unchanged" in recall("map", "--known", root["node"]["content_hash"]).output
    assert recall("digest", "no such node").exit_code == 1


@pytest.mark.parametrize(("altitude", "digests"), [("entity", 0), ("scope", 1), ("tenant", 1), ("mixed", 0)])
def test_a_question_is_answered_at_an_altitude(
    altitude: str, digests: int, distilled: dict[str, Any], recall: Callable[..., Result]
) -> None:
    body = {"query": "which pump leaks oil", "budget": 4000, "entities": ["note"], "altitude": altitude}
    pack = answer(recall("tool", "recall", json.dumps(body), "--json"))
    entities = [item["entity"] for item in pack["items"]]
    assert (pack["altitude"], pack["degraded"]) == (altitude, [])
    assert sum(entity == "digest" for entity in entities) >= digests
    assert all("pump" in item["row"]["summary"] for item in pack["items"] if item["entity"] == "digest")
    if digests:
        assert "note" not in entities
