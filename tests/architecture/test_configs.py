"""Checked-in configuration: no unknown key, nothing out of step with the code."""

from pathlib import Path

import pytest
import yaml

from recall.registry import Registry
from recall.settings import Settings, load_registry, load_settings

CONFIGS = Path(__file__).parents[2] / "configs"
STARTER = Path(__file__).parents[2] / "recall" / "commands" / "starter"
ENTITY_FILES = [*sorted(CONFIGS.glob("entities/*.yaml")), STARTER / "entities.yaml"]


def test_local_yaml_spells_out_every_default() -> None:
    raw = yaml.safe_load((CONFIGS / "local.yaml").read_text())
    assert raw == Settings().model_dump(mode="json")


@pytest.mark.parametrize("path", [CONFIGS / "local.yaml", STARTER / "recall.yaml"], ids=lambda path: path.name)
def test_settings_files_have_no_unknown_key(path: Path) -> None:
    load_registry(load_settings(path))


@pytest.mark.parametrize("path", ENTITY_FILES, ids=lambda path: path.name)
def test_entity_files_parse_and_say_where_their_rows_come_from(path: Path) -> None:
    raw = yaml.safe_load(path.read_text())
    registry = Registry.parse(raw, str(path))
    assert set(raw["entities"]) <= set(registry.entities)
    assert raw["sources"]


def test_musique_passages_reach_each_other_in_two_steps() -> None:
    registry = load_registry(load_settings(entities=str(CONFIGS / "entities" / "musique.yaml")))
    out = {(step.rel, step.target, step.reverse) for step in registry.steps("passage", reverse=False)}
    back = {(step.rel, step.target, step.reverse) for step in registry.steps("phrase", reverse=False)}
    assert ("MENTIONS", "phrase", False) in out
    assert {("MENTIONS", "passage", True), ("FACT", "phrase", False), ("FACT", "phrase", True)} <= back
    assert registry.entity("phrase").spec.bridge
    assert not registry.entity("fact").in_graph


def test_locomo_turns_reach_their_session_and_both_neighbours() -> None:
    registry = load_registry(load_settings(entities=str(CONFIGS / "entities" / "locomo.yaml")))
    turn = {(step.rel, step.target, step.reverse) for step in registry.steps("turn", reverse=False)}
    assert turn == {("IN_SESSION", "session", False), ("NEXT", "turn", False), ("NEXT", "turn", True)}
    session = {(step.rel, step.target, step.reverse) for step in registry.steps("session", reverse=False)}
    assert session == {("IN_SESSION", "turn", True)}
