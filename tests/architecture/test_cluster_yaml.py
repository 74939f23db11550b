"""`cluster.yaml` is what `ray up` accepts; checked offline by Ray's own schema, which knows no unknown key."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def cluster() -> dict:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))


def validate(config: dict) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(config))


def test_ray_accepts_the_cluster():
    validate(cluster())


def test_a_misspelt_key_would_be_noticed():
    with pytest.raises(Exception, match="max_worker"):
        validate({**cluster(), "max_worker": 3})


def test_no_work_lands_on_the_head_and_workers_exist():
    types = cluster()["available_node_types"]
    assert types["head"]["resources"]["CPU"] == 0
    assert types["worker"]["min_workers"] >= 1
    assert sum(one["max_workers"] for one in types.values()) >= cluster()["max_workers"]
