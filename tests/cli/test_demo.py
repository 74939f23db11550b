"""The questions of `recall demo`, and when their answers count as expected."""

from typing import Any

import pytest

from recall.commands.demo import Asked, questions
from recall.demo import QUESTIONS, generate
from recall.requests import RecallRequest, parse_request


def test_the_demo_asks_in_every_way_on_a_budget_and_with_a_filter() -> None:
    titles = [asked.title for asked in questions()]
    assert len(titles) == 8
    assert {
        "a word that one row holds",
        "other words for it",
        "a link away",
        "on a tight budget",
        "with a filter",
    } == set(titles)
    assert {question.needs for question in QUESTIONS} == {"words", "meaning", "links"}


@pytest.mark.parametrize("asked", questions(), ids=lambda asked: asked.body["query"])
def test_every_question_is_a_legal_request_about_rows_that_exist(asked: Asked) -> None:
    request = parse_request(RecallRequest, asked.body)
    rows = generate()
    assert set(request.entities) <= set(rows)
    if asked.gold:
        entity, row_id = asked.gold
        assert row_id in {row["id"] for row in rows[entity]}
    if asked.holds:
        field, value = asked.holds
        assert any(row[field] == value for row in rows[request.entities[0]])


def pack(*items: tuple[str, str, dict[str, Any]], tokens: int = 10) -> dict[str, Any]:
    return {"tokens": tokens, "items": [{"entity": entity, "id": row_id, "row": row} for entity, row_id, row in items]}


def test_an_answer_is_expected_when_the_row_is_there_and_the_budget_held() -> None:
    asked = Asked("t", {"budget": 50}, gold=("note", "2"))
    assert asked.rank(pack(("note", "1", {}), ("note", "2", {}))) == 2
    assert asked.satisfied(pack(("note", "2", {})))
    assert not asked.satisfied(pack(("note", "2", {}), tokens=51))
    assert not asked.satisfied(pack(("asset", "2", {})))


def test_a_filtered_answer_is_expected_when_every_row_satisfies_the_filter() -> None:
    asked = Asked("t", {"budget": 50}, holds=("status", "open"))
    assert asked.satisfied(pack(("note", "1", {"status": "open"})))
    assert not asked.satisfied(pack(("note", "1", {"status": "open"}), ("note", "2", {"status": "closed"})))
    assert not asked.satisfied(pack())
