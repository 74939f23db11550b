"""The cluster path: settings that select all four servers, and the containers that answer to them."""

from pathlib import Path

import yaml

from recall.settings import load_settings

ROOT = Path(__file__).parents[2]


def compose() -> dict:
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_configuration_alone_selects_the_servers():
    settings = load_settings(ROOT / "configs" / "cluster.yaml")
    kinds = [getattr(settings.planes, plane).kind for plane in ("rows", "vector", "search", "graph")]
    assert kinds == ["postgres", "milvus", "opensearch", "nebula"]
    assert settings.auth.loopback_tenant is None


def test_every_container_is_pinned_and_checked():
    for name, service in compose()["services"].items():
        image, _, tag = service["image"].rpartition(":")
        assert image, name
        assert any(char.isdigit() for char in tag), f"{name} is not pinned: {service['image']}"
        assert service["healthcheck"]["test"], name


def test_containers_listen_on_loopback_only():
    for service in compose()["services"].values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_every_volume_is_declared_and_every_dependency_is_waited_for():
    document = compose()
    for service in document["services"].values():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in document["volumes"]
        for needed, how in service.get("depends_on", {}).items():
            assert needed in document["services"]
            assert how == {"condition": "service_healthy"}


def test_the_settings_find_the_containers_on_the_ports_they_publish():
    settings = load_settings(ROOT / "configs" / "cluster.yaml")
    ports = {port.split(":")[1] for service in compose()["services"].values() for port in service.get("ports", [])}
    planes = settings.planes
    named = {str(planes.rows.port), planes.vector.uri.rpartition(":")[2], planes.search.hosts[0].rpartition(":")[2]}
    assert named | {planes.graph.addresses[0].rpartition(":")[2]} <= ports
