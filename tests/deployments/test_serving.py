"""What `recall serve` reads before it starts anything."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from ray import serve

from deployments.serving import deploy, free_port, read_serve_file
from recall.errors import ConfigError

if TYPE_CHECKING:
    from ray.serve import Application


def test_file_for_one_machine_listens_on_loopback_only() -> None:
    plan = read_serve_file()
    assert plan.http_options["host"] == "127.0.0.1"
    assert (plan.name, plan.route_prefix, plan.proxy_location) == ("recall", "/", "HeadOnly")


def test_only_what_the_file_says_is_an_option(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "applications: [{import_path: 'deployments.app:build', deployments: [{name: Rows, max_ongoing_requests: 7}]}]"
    )
    plan = read_serve_file(path)
    assert plan.numbers == {"Rows": {"max_ongoing_requests": 7}}
    assert plan.http_options == {}


def test_replicas_log_as_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {}
    monkeypatch.setattr(serve, "run", lambda _, **options: said.update(options))
    plan = read_serve_file()
    deploy(cast("Application", None), plan.name, plan.route_prefix, plan.logging_config)
    assert said["logging_config"]["enable_access_log"] is False


@pytest.mark.parametrize(
    "text",
    [
        "applications: []",
        "[]",
        "applications: [{import_path: a.b}, {import_path: c.d}]",
        "applications: [{import_path: a.b, deployments: [{name: X, max_ongoing_requests: many}]}]",
        "{",
    ],
)
def test_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"serve\.yaml"):
        read_serve_file(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        read_serve_file(tmp_path / "none.yaml")


def test_free_port_can_be_bound() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port("127.0.0.1")))
