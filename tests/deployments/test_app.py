"""The composed application in Serve's local testing mode: arguments, start-up checks, the engine over handles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import pytest
from pydantic import ValidationError
from ray import serve
from ray.serve import context
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as call_builder
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.config import DeploymentConfig

from deployments.app import AppArgs, behind_proxy, build, compose
from recall.errors import ConfigError, ModelMismatch
from recall.rows import Caller
from recall.settings import Settings


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = corpus.settings(tmp_path_factory.mktemp("app"))
    planes = corpus.open_loaded(settings, "acme", "globex")
    asyncio.run(planes.close())
    return settings


@pytest.fixture(scope="module")
def ingress(chosen: Settings) -> Iterator[Any]:
    """The Ingress object itself, over local replicas of every other deployment."""
    with pytest.MonkeyPatch.context() as patch:
        # `@serve.batch` asks for the replica's limits, which local testing mode does not provide.
        patch.setattr(context, "_INTERNAL_REPLICA_CONTEXT", replica_context())
        handle = serve.run(compose(chosen, {}), name="app", _local_testing_mode=True)
        yield handle._init_router()._user_callable_wrapper._callable


def replica_context() -> context.ReplicaContext:
    replica = ReplicaID("local", DeploymentID("QueryEmbedder", "app"))
    return context.ReplicaContext(replica, object, DeploymentConfig(max_ongoing_requests=64), None, 1)


async def test_builder_gets_a_checked_model(tmp_path: Path) -> None:
    config = tmp_path / "recall.yaml"
    config.write_text("embedder: {kind: none}\n")
    application = call_builder(build, {"config": str(config)})
    assert application._bound_deployment.name == "Ingress"
    with pytest.raises(ValidationError, match="confg"):
        call_builder(build, {"confg": "x"})


def test_wrong_settings_or_tokens_fail_before_any_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "recall.yaml"
    config.write_text("embeder: {kind: none}\n")
    with pytest.raises(ConfigError, match="embeder"):
        build(AppArgs(config=str(config)))
    monkeypatch.setenv("RECALL_TOKENS", "{")
    with pytest.raises(ConfigError, match="RECALL_TOKENS"):
        compose(Settings(), {})


def test_loopback_tenant_is_off_behind_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_SERVE_ENABLE_HA_PROXY", raising=False)
    assert not behind_proxy()
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    assert behind_proxy()


async def test_every_part_is_ready(ingress: Any) -> None:
    checks = await ingress.readiness()
    assert checks == dict.fromkeys(("embedder", "vector", "search", "graph", "rows"))


async def test_engine_answers_over_handles(ingress: Any) -> None:
    from recall.tools import call_tool

    body = {"query": "pump", "budget": 500, "entities": ["asset"]}
    pack = await call_tool(ingress._toolbox, "recall", Caller("acme"), body)
    assert {item["id"] for item in pack["items"]} >= {"a1", "a3", "s1"}
    assert pack["degraded"] == []
    assert "globex" not in str(pack)


def test_other_query_model_is_refused_at_start_naming_both(chosen: Settings) -> None:
    other = Settings.model_validate({**chosen.model_dump(), "embedder": {"kind": "hash", "dim": 32}})
    with pytest.raises(ModelMismatch) as caught:
        serve.run(compose(other, {}), name="other", _local_testing_mode=True)
    assert "32 dimensions" in str(caught.value)
    assert "64 dimensions" in str(caught.value)
