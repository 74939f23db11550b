"""What `recall doctor` finds on a machine where something is wrong, and what it advises."""

import json
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recall.cli import app
from recall.commands import checks
from recall.commands.checks import Finding
from recall.settings import AuthSettings, HashEmbedderSettings, MiniLmSettings, NoEmbedderSettings, Settings


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TESTED", {"no-such-thing": "1", "typer": "0.0.1"})
    missing, other = checks.check_packages()
    assert (missing.status, "no-such-thing" in missing.detail, "pip install" in missing.advice) == (
        "failed",
        True,
        True,
    )
    assert (other.status, "typer" in other.detail, "tested 0.0.1" in other.detail) == ("warning", True, True)


def test_a_data_dir_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = only(checks.check_data_dir(Settings(data_dir=str(tmp_path / "file"))))
    assert (finding.status, "--data-dir" in finding.advice) == ("failed", True)


@pytest.mark.parametrize(("free", "status"), [(2**20, "failed"), (2**30, "warning"), (2**40, "ok")])
def test_free_disk_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(free, 0, free))
    writable, disk = checks.check_data_dir(Settings(data_dir=str(tmp_path / "new")))
    assert (writable.status, disk.status) == ("ok", status)
    assert bool(disk.advice) == (status != "ok")


def test_tokens_are_counted_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(auth=AuthSettings(tokens_env="T", loopback_tenant=None))
    monkeypatch.delenv("T", raising=False)
    assert only(checks.check_tokens(settings)).status == "warning"
    monkeypatch.setenv("T", '{"s3cret": "acme"}')
    good = only(checks.check_tokens(settings))
    assert (good.status, "1 in T" in good.detail, "s3cret" in good.detail) == ("ok", True, False)
    monkeypatch.setenv("T", '{"s3cret": "a b"}')
    bad = only(checks.check_tokens(settings))
    assert (bad.status, "s3cret" in bad.detail + bad.advice) == ("failed", False)


def test_a_taken_port_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(checks, "HTTP_PORT", taken.getsockname()[1])
        states = {finding.check: finding for finding in checks.check_machine(Settings())}
    assert (states["port"].status, "--port" in states["port"].advice) == ("warning", True)


def test_an_embedder_is_calibrated_only_when_its_model_is_known() -> None:
    assert only(checks.check_model(Settings(embedder=NoEmbedderSettings(kind="none")))).status == "warning"
    assert only(checks.check_model(Settings(embedder=HashEmbedderSettings(kind="hash")))).status == "ok"


def test_a_model_folder_that_is_not_there_fails(tmp_path: Path) -> None:
    finding = only(checks.check_model(Settings(embedder=MiniLmSettings(model_dir=str(tmp_path / "none")))))
    assert (finding.status, "embedder.model_dir" in finding.advice) == ("failed", True)


def test_the_installed_model_passes_its_calibration() -> None:
    finding = only(checks.check_model(Settings()))
    assert (finding.status, "calibration pair at 0.7" in finding.detail or "at 0.6" in finding.detail) == ("ok", True)


def test_doctor_goes_on_past_a_wrong_entity_file_and_exits_1(tmp_path: Path) -> None:
    (tmp_path / "recall.yaml").write_text("data_dir: d\nentities: e.yaml\nembedder: { kind: hash }\n")
    (tmp_path / "e.yaml").write_text("entities: { Bad: { columns: {} } }\n")
    result = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "recall.yaml"), "--json"])
    assert result.exit_code == 1
    states = {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert (states["data directory"]["status"], states["entity file"]["status"]) == ("ok", "failed")
    assert "recall init" in states["entity file"]["advice"]


def test_doctor_passes_in_a_fresh_folder(tmp_path: Path) -> None:
    (tmp_path / "recall.yaml").write_text("data_dir: d\nembedder: { kind: hash }\n")
    result = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "recall.yaml")])
    assert result.exit_code == 0, result.output
    assert "everything works" in result.stdout
