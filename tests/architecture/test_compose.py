"""compose.yaml: no misspelt key, a start that ends, and what configs/cluster.yaml expects of each server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from recall.settings import MilvusSettings, NebulaSettings, OpenSearchSettings, PostgresSettings, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE: Mapping[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Mapping[str, Mapping[str, Any]] = COMPOSE["services"]
CLUSTER = ROOT / "configs" / "cluster.yaml"
# Of the compose specification; a key outside of it is misspelt.
KEYS = {
    "command", "configs", "depends_on", "entrypoint", "environment", "healthcheck", "image", "logging", "ports",
    "restart", "ulimits", "volumes",
}  # fmt: skip
HEALTH_KEYS = {"test", "interval", "timeout", "retries", "start_period"}


def published() -> dict[int, str]:
    """Service by the port that it publishes."""
    return {int(port.split(":")[1]): name for name, one in SERVICES.items() for port in one.get("ports", ())}


def test_every_key_is_known() -> None:
    assert set(COMPOSE) <= {"name", "services", "volumes", "configs", "x-defaults"}
    for one in SERVICES.values():
        assert set(one) <= KEYS
        assert set(one["healthcheck"]) <= HEALTH_KEYS


def test_data_lie_in_declared_volumes() -> None:
    used = {volume.split(":")[0] for one in SERVICES.values() for volume in one.get("volumes", ())}
    assert used == set(COMPOSE["volumes"])


def test_nothing_waits_for_storage_that_waits_for_being_added() -> None:
    waited_for = {name for one in SERVICES.values() for name in one.get("depends_on", {})}
    assert "nebula-storage" not in waited_for
    assert "nebula-graph" in SERVICES["nebula-hosts"]["depends_on"]


def test_the_role_of_the_settings_is_made_and_is_no_superuser() -> None:
    rows = load_settings(CLUSTER).planes.rows
    assert isinstance(rows, PostgresSettings)
    assert rows.row_security
    assert f"${{{rows.password_env}:?" in SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD"]
    # POSTGRES_USER would be one.
    assert "POSTGRES_USER" not in SERVICES["postgres"]["environment"]
    assert f"CREATE ROLE {rows.user} LOGIN" in COMPOSE["configs"]["postgres_role"]["content"]


def test_each_plane_is_at_the_port_of_its_own_server() -> None:
    planes = load_settings(CLUSTER).planes
    assert isinstance(planes.rows, PostgresSettings)
    assert isinstance(planes.vector, MilvusSettings)
    assert isinstance(planes.search, OpenSearchSettings)
    assert isinstance(planes.graph, NebulaSettings)
    ports = [str(planes.rows.port), planes.vector.uri, planes.search.hosts[0], planes.graph.addresses[0]]
    found = [published()[int(port.rsplit(":", maxsplit=1)[-1])] for port in ports]
    assert found == ["postgres", "milvus", "opensearch", "nebula-graph"]
    assert planes.vector.bulk.uri is not None
    assert published()[int(re.findall(r":(\d+)&", planes.vector.bulk.uri)[0])] == "minio"
