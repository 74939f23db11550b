"""`recall doctor --replay-graph` on a wire-level stand-in, and where there is no such graph."""

import json
from pathlib import Path

import pytest
from standins.nebula.server import Server
from typer.testing import CliRunner

from recall.cli import app


def doctor(config: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", "--replay-graph", "--json", "--config", str(config)])
    return result.exit_code, result.output


@pytest.mark.server
def test_every_statement_is_asked_and_answered(tmp_path: Path) -> None:
    with Server() as server:
        config = tmp_path / "recall.yaml"
        config.write_text(
            f"planes: {{graph: {{kind: nebula, addresses: ['127.0.0.1:{server.port}'], heartbeat_s: 0.1}}}}"
        )
        code, output = doctor(config)
    (finding,) = json.loads(output)["findings"]
    assert (code, finding["status"]) == (0, "ok"), output
    assert "all answered as recorded" in finding["detail"]


def test_another_graph_is_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "recall.yaml"
    config.write_text("data_dir: data")
    code, output = doctor(config)
    assert code == 1
    assert "ladybug" in output


def test_a_cluster_that_does_not_answer_is_a_finding(tmp_path: Path) -> None:
    config = tmp_path / "recall.yaml"
    config.write_text(
        "planes: {graph: {kind: nebula, addresses: ['127.0.0.1:9'], connect_timeout_ms: 200, retries: 0}}"
    )
    code, output = doctor(config)
    (finding,) = json.loads(output)["findings"]
    assert (code, finding["status"]) == (1, "failed")
    assert "127.0.0.1:9" in finding["detail"]
