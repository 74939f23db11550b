"""Settings: strict about keys, forgiving about nothing, and clear about paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from recall.errors import ConfigError
from recall.prompts import Prompts
from recall.settings import Settings, load_registry, load_settings, settings_from_environment


def written(folder: Path, raw: object, name: str = "recall.yaml") -> Path:
    path = folder / name
    path.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw), encoding="utf-8")
    return path


def _mappings(model: BaseModel, *path: str) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every mapping of the settings: its path of keys, and what it needs to be told from its alternatives."""
    found = [(path, {"kind": model.kind} if hasattr(model, "kind") else {})]
    for name, value in model:
        if isinstance(value, BaseModel):
            found += _mappings(value, *path, name)
    return found


@pytest.mark.parametrize(("path", "kind"), _mappings(Settings()), ids=lambda part: ".".join(part))
def test_an_unknown_key_is_refused_at_every_level(path: tuple[str, ...], kind: dict[str, Any], tmp_path: Path) -> None:
    raw: dict[str, Any] = {**kind, "no_such_key": 1}
    for name in reversed(path):
        raw = {name: raw}
    with pytest.raises(ConfigError, match=r"recall\.yaml.*no_such_key"):
        load_settings(written(tmp_path, raw))


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"recall": {"timeout_ms": 0}}, r"recall\.timeout_ms"),
        ({"recall": {"fusion": "best"}}, r"recall\.fusion"),
        ({"planes": {"vector": {"kind": "postgres"}}}, r"planes\.vector"),
        ({"planes": {"rows": {"kind": "memory", "path": "x"}}}, r"planes\.rows.*path"),
        ({"embedder": {"kind": "minilm", "threads": "many"}}, r"embedder.*threads"),
        ("[1, 2]", "expected a mapping"),
        ("a: [", r"recall\.yaml"),
        ("\x00", r"recall\.yaml"),
    ],
)
def test_a_wrong_value_is_refused_naming_the_file_and_the_key(raw: object, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(written(tmp_path, raw))


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
        load_settings(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match=r"binary\.yaml"):
        load_settings(tmp_path / "binary.yaml")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_settings(tmp_path)


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    found = load_settings(written(tmp_path, ""))
    assert found.recall == Settings().recall
    assert found.data_dir == str(tmp_path / ".recall")


def test_paths_are_relative_to_the_file_and_arguments_override_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = written(tmp_path / "sub", {"data_dir": "../data", "entities": "mine.yaml"})
    found = load_settings(path)
    assert found.data_dir == str(tmp_path / "data")
    assert found.entities == str(tmp_path / "sub" / "mine.yaml")
    assert found.data_path("rows.sqlite") == tmp_path / "data" / "rows.sqlite"
    assert found.data_path("/elsewhere/x") == Path("/elsewhere/x")
    other = load_settings(path, data_dir=str(tmp_path / "other"), entities=str(tmp_path / "e.yaml"))
    assert (other.data_dir, other.entities) == (str(tmp_path / "other"), str(tmp_path / "e.yaml"))


def test_settings_survive_being_written_and_read_again(tmp_path: Path) -> None:
    found = load_settings(written(tmp_path, {"planes": {"rows": {"kind": "memory"}}, "embedder": {"kind": "none"}}))
    assert load_settings(written(tmp_path, found.model_dump(), "again.yaml")) == found


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings_from_environment({}).recall.rrf_k == 60
    written(tmp_path, {"recall": {"rrf_k": 10}})
    other = written(tmp_path, {"recall": {"rrf_k": 20}}, "other.yaml")
    assert settings_from_environment({}).recall.rrf_k == 10
    found = settings_from_environment({"RECALL_CONFIG": str(other), "RECALL_DATA_DIR": str(tmp_path / "d")})
    assert (found.recall.rrf_k, found.data_dir) == (20, str(tmp_path / "d"))


def test_the_registry_is_read_from_the_file_that_settings_name(tmp_path: Path) -> None:
    written(tmp_path, {"entities": {"note": {"columns": {"text": "string"}}}}, "entities.yaml")
    found = load_registry(load_settings(written(tmp_path, {"entities": "entities.yaml"})))
    assert {"note", "memory", "topic"} == set(found.entities)
    assert {"memory", "topic"} == set(load_registry(Settings()).entities)
    written(tmp_path, {"entities": {"note": {"colums": {}}}}, "entities.yaml")
    with pytest.raises(ConfigError, match=r"entities\.yaml.*colums"):
        load_registry(load_settings(tmp_path / "recall.yaml"))


def test_a_folder_of_prompts_becomes_part_of_the_settings(tmp_path: Path) -> None:
    prompts = tmp_path / "mine"
    prompts.mkdir()
    for level in ("entity", "scope", "tenant"):
        written(prompts, {"system": f"About {level}.", "user": "{texts}"}, f"{level}.yaml")
    summarizer = {"kind": "openai", "url": "http://127.0.0.1:1/v1", "model": "m", "prompts": "mine"}
    chosen = load_settings(written(tmp_path, {"distill": {"summarizer": summarizer}})).distill.summarizer
    assert chosen.prompts.of_level(2).system == "About tenant."
    usual = type(chosen).model_validate({**summarizer, "prompts": {}})
    assert chosen.identity != usual.identity
    (prompts / "scope.yaml").unlink()
    with pytest.raises(ConfigError, match=r"scope\.yaml: no such file"):
        load_settings(tmp_path / "recall.yaml")


def test_one_name_makes_two_engines_one_model_to_a_recipe() -> None:
    def identity(**chosen: object) -> str:
        return Settings.model_validate({"distill": {"summarizer": chosen}}).distill.summarizer.identity

    bulk = {"kind": "vllm", "vllm": {"model": "org/small"}}
    online = {"kind": "openai", "url": "http://127.0.0.1:1/v1", "model": "small"}
    assert identity(**bulk) != identity(**online)
    assert identity(**bulk, name="small") == identity(**online, name="small")
    assert identity(**bulk, name="small") != identity(**online, name="small", seed=1)
    assert identity(**bulk, name="small") != identity(**bulk, name="other")


def test_the_prompts_that_are_shipped_are_the_defaults() -> None:
    folder = Path(__file__).parents[2] / "configs" / "prompts"
    for level, prompt in Prompts():
        assert yaml.safe_load((folder / f"{level}.yaml").read_text()) == prompt.model_dump()


def test_chunks_of_the_bulk_embedder_must_fit_its_engine(tmp_path: Path) -> None:
    embedder = {"kind": "vllm", "name": "m", "dim": 8, "max_tokens": 512, "vllm": {"model": "m", "max_model_len": 256}}
    with pytest.raises(ConfigError, match=r"max_tokens 512 is more than vllm\.max_model_len 256"):
        load_settings(written(tmp_path, {"embedder": embedder}))
