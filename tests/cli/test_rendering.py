"""Answers as tables: what a reader must be able to see in them."""

import io

from rich.console import Console, RenderableType

from recall.commands.rendering import path_text, pictures, row_text, shorten

PATH = [
    {"rel": "", "reverse": False, "ref": {"entity": "passage", "id": "m26"}},
    {"rel": "MENTIONS", "reverse": False, "ref": {"entity": "phrase", "id": "tennessee"}},
    {"rel": "MENTIONS", "reverse": True, "ref": {"entity": "passage", "id": "m34"}},
]
ITEM = {
    "entity": "passage",
    "id": "m34",
    "row": {"id": "m34", "title": "Hank [bold]Snow", "text": "He died\nin Tennessee. " * 30, "tags": ["a", "b"]},
    "score": 0.0163,
    "source": ["graph", "search"],
    "tokens": 42,
    "matched": {"channel": "vector", "text": "second chunk", "chunk": 1},
}
PACK = {
    "items": [ITEM],
    "omitted": 3,
    "tokens": 42,
    "warnings": ["search is down"],
    "degraded": [],
    "channels": {
        "vector": {"ms": 12.4, "candidates": 24, "truncated": False},
        "search": {"ms": 1, "candidates": 0, "error": "channel_failed"},
    },
    "dropped": {"stale": 2, "filtered": 0, "covered": 0},
    "altitude": "entity",
    "request_id": "r",
}


def drawn(answer: dict[str, object]) -> str:
    console = Console(width=160, file=io.StringIO())
    made: list[RenderableType] = list(pictures(answer))
    for picture in made:
        console.print(picture)
    return console.file.getvalue()


def test_a_pack_shows_rank_item_score_channels_tokens_and_what_was_left_out() -> None:
    text = drawn(PACK)
    for expected in (
        "passage:m34",
        "Hank [bold]Snow",
        "0.0163",
        "graph",
        "search",
        "42 tokens",
        "3 omitted",
        "2 stale",
    ):
        assert expected in text
    assert "! search is down" in text
    assert "search 0 in 1 ms (channel_failed)" in text
    assert "matched: second chunk" in text


def test_explain_shows_ranks_per_channel_and_the_path() -> None:
    parts = [{"channel": "graph", "rank": 2, "score": 0.5, "contribution": 0.0161}]
    text = drawn({**PACK, "items": [{**ITEM, "explain": {"contributions": parts, "path": PATH}}]})
    assert "graph #2 (0.5) +0.0161" in text
    assert "passage:m26 -MENTIONS-> phrase:tennessee <-MENTIONS- passage:m34" in text


def test_an_empty_pack_says_whether_the_budget_was_the_reason() -> None:
    assert "nothing fits" in drawn({**PACK, "items": [], "omitted": 2})
    assert "nothing found" in drawn({**PACK, "items": [], "omitted": 0})


def test_paths_are_drawn_in_walking_order() -> None:
    assert path_text(PATH[:2]) == "passage:m26 -MENTIONS-> phrase:tennessee"


def test_hits_rows_and_memories_are_drawn() -> None:
    assert "a:1" in drawn(
        {"hits": [{"entity": "a", "id": "1", "rank": 1, "score": 2.5, "highlights": ["<em>pump</em> off"]}]}
    )
    assert "pump off" in drawn(
        {"hits": [{"entity": "a", "id": "1", "rank": 1, "score": 2.5, "highlights": ["<em>pump</em> off"]}]}
    )
    assert "no rows" in drawn({"rows": []})
    assert "n.id" in drawn({"rows": [{"n.id": "7", "x": None}]})
    assert "(version 3)" in drawn({"entity": "a", "id": "1", "version": 3, "row": {"id": "1", "name": "Pump"}})
    memory = {"id": "m", "content": "fact", "metadata": {}, "score": 0.4, "fused_score": 0.9, "channels": ["vector"]}
    timeline = drawn({"memories": [memory], "dated_context": "- [2024-01-01] fact", "now": "2024-01-01"})
    assert "now: 2024-01-01" in timeline
    assert "0.9000" in timeline


def test_a_row_is_shown_by_its_words_on_one_line() -> None:
    assert row_text({"id": "1", "a": None, "b": ["x", "y"], "c": {"d": 1}, "e": ""}) == "x, y · d: 1"
    assert shorten("a\n b" * 200, 10) == "a ba ba b…"
