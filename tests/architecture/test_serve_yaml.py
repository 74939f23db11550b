"""Serve YAML: Ray accepts misspelt keys silently, so every key is walked here against Ray's own models."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from deployments.app import AppArgs, compose
from deployments.embedder import BatchNumbers
from deployments.ingress import IngressLimits
from deployments.serving import DEFAULT_FILE, read_serve_file
from recall.settings import Settings

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.glob("serve*.yaml"))
USER_CONFIGS: Mapping[str, type[BaseModel]] = {"Ingress": IngressLimits, "QueryEmbedder": BatchNumbers}
# Free-form in Ray's models; checked by their own models below.
FREE = {"args", "user_config", "runtime_env", "resources", "label_selector"}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Every pydantic model that a field's annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in models_in(part)]


def unknown_keys(raw: object, model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Paths of keys that `model` (or a model nested in it) does not declare."""
    if not isinstance(raw, Mapping):
        return
    for key, value in raw.items():
        where = f"{path}.{key}" if path else str(key)
        field = model.model_fields.get(str(key))
        if field is None:
            yield where
            continue
        if key in FREE:
            continue
        nested = models_in(field.annotation)
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if isinstance(item, Mapping) and nested:
                yield from unknown_keys(item, nested[-1], where)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def deployments(path: Path) -> list[dict[str, Any]]:
    return [one for application in load(path)["applications"] for one in application.get("deployments", ())]


def names_of(application: Any) -> set[str]:
    """Names of all deployments of a bound application."""
    found: set[str] = set()
    pending = [application]
    while pending:
        one = pending.pop()
        deployment = one._bound_deployment
        found.add(deployment.name)
        for argument in deployment.init_args:
            nested = argument.values() if isinstance(argument, Mapping) else [argument]
            pending += [part for part in nested if hasattr(part, "_bound_deployment")]
    return found


def test_there_is_a_file_for_one_machine() -> None:
    assert DEFAULT_FILE in FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_key_is_known_to_ray(path: Path) -> None:
    assert list(unknown_keys(load(path), ServeDeploySchema)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_ray_accepts_the_values(path: Path) -> None:
    ServeDeploySchema.model_validate(load(path))
    for one in deployments(path):
        AutoscalingConfig.model_validate(one.get("autoscaling_config", {}))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_free_form_parts_are_known_to_us(path: Path) -> None:
    for application in load(path)["applications"]:
        AppArgs.model_validate(application.get("args", {}))
    for one in deployments(path):
        if "user_config" in one:
            USER_CONFIGS[one["name"]].model_validate(one["user_config"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_deployment_exists_and_has_numbers(path: Path) -> None:
    named = [one["name"] for one in deployments(path)]
    assert sorted(named) == sorted(names_of(compose(Settings(), {})))
    for one in deployments(path):
        assert {"max_ongoing_requests", "max_queued_requests", "health_check_period_s"} <= set(one)
        assert one["ray_actor_options"]["num_cpus"] > 0
        assert ("num_replicas" in one) != ("autoscaling_config" in one)


def test_numbers_for_one_machine_fit_two_cores_at_full_scale() -> None:
    total = 0.0
    for one in deployments(DEFAULT_FILE):
        replicas = one["num_replicas"] if "num_replicas" in one else one["autoscaling_config"]["max_replicas"]
        total += replicas * one["ray_actor_options"]["num_cpus"]
    assert total <= 2.0


def test_service_uses_the_numbers_of_the_file() -> None:
    plan = read_serve_file()
    built = compose(Settings(), plan.numbers)._bound_deployment
    expected = next(one for one in deployments(DEFAULT_FILE) if one["name"] == "Ingress")
    assert built.max_ongoing_requests == expected["max_ongoing_requests"]
    assert built.user_config == expected["user_config"]
    assert set(plan.numbers) == {one["name"] for one in deployments(DEFAULT_FILE)}


@pytest.mark.parametrize(
    ("raw", "wrong"),
    [
        ({"http_option": {}}, "http_option"),
        ({"http_options": {"prot": 1}}, "http_options.prot"),
        ({"applications": [{"import_pth": "x"}]}, "applications.import_pth"),
        (
            {"applications": [{"deployments": [{"max_ongoing_request": 3}]}]},
            "applications.deployments.max_ongoing_request",
        ),
        (
            {"applications": [{"deployments": [{"autoscaling_config": {"min_replica": 1}}]}]},
            "applications.deployments.autoscaling_config.min_replica",
        ),
        (
            {"applications": [{"deployments": [{"ray_actor_options": {"num_cpu": 1}}]}]},
            "applications.deployments.ray_actor_options.num_cpu",
        ),
    ],
)
def test_walk_finds_misspelt_keys(raw: dict[str, Any], wrong: str) -> None:
    assert list(unknown_keys(raw, ServeDeploySchema)) == [wrong]


def test_walk_knows_the_models_it_descends_into() -> None:
    assert models_in(DeploymentSchema.model_fields["autoscaling_config"].annotation) == [AutoscalingConfig]
