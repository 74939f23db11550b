"""Readers of public data sets, on hand-made files in the published forms."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import InvalidRequest
from recall.evaluation.readers import (
    beir_corpus,
    beir_queries,
    hotpotqa_passages,
    hotpotqa_queries,
    locomo,
    locomo_queries,
    musique_graph,
    musique_queries,
    phrase_id,
    qmsum_meetings,
    timeqa_paragraphs,
    timeqa_queries,
)
from recall.evaluation.readers.files import read_jsonl
from recall.evaluation.readers.locomo import locomo_day
from recall.keys import check_id, check_tenant
from recall.rows import Ref

DATA = Path(os.environ.get("RECALL_DATA", Path(__file__).parents[2] / "../shared/data"))
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"no data sets at {DATA} (set RECALL_DATA)")


def write_lines(path: Path, rows: list[object]) -> Path:
    path.write_bytes(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
    return path


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    write_lines(
        tmp_path / "corpus.jsonl",
        [
            {"_id": "d1", "title": "One", "text": "a\u2028b\u0085c", "metadata": {}},
            {"_id": "d2", "title": "", "text": "two", "metadata": {"year": 1999}, "lang": "en"},
            {"_id": 3, "text": "three", "tenant": "m1"},
        ],
    )
    write_lines(
        tmp_path / "queries.jsonl",
        [
            {"_id": "q1", "text": "first?", "answer": ["x", "y"]},
            {"_id": "q2", "text": "unjudged?"},
            {"_id": "q3", "text": "third?", "tenant": "m1", "answer": "z"},
        ],
    )
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t2\nq1\td9\t0\nq3\t3\t1\n")
    return tmp_path


def test_lines_end_at_newline_only(beir: Path) -> None:
    rows = [row for _, _, row in beir_corpus([beir])]
    assert [row["id"] for row in rows] == ["d1", "d2", "3"]
    assert rows[0]["text"] == "a\u2028b\u0085c"


def test_corpus_keeps_further_fields_and_the_own_tenant_of_a_document(beir: Path) -> None:
    (first, second, third) = list(beir_corpus([beir / "corpus.jsonl"]))
    assert first == (None, "passage", {"id": "d1", "title": "One", "text": "a\u2028b\u0085c"})
    assert second[2]["metadata"] == {"year": 1999}
    assert second[2]["lang"] == "en"
    assert third == ("m1", "passage", {"id": "3", "title": "", "text": "three"})


def test_beir_queries_carry_graded_evidence_best_first(beir: Path) -> None:
    first, third = beir_queries(beir)
    assert (first.relevant, first.grades) == ((Ref("passage", "d2"), Ref("passage", "d1")), (2, 1))
    assert first.answers == ("x", "y")
    assert (third.tenant, third.relevant, third.answers) == ("m1", (Ref("passage", "3"),), ("z",))


def test_beir_split_folder_wins_over_the_flat_file(beir: Path) -> None:
    (beir / "qrels").mkdir()
    (beir / "qrels" / "dev.tsv").write_text("q2\t0\td2\t1\n")
    assert [query.id for query in beir_queries(beir, split="dev")] == ["q2"]


def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"_id": "a", "text": ""}\n\n{"_id": \n')
    with pytest.raises(InvalidRequest, match=r"corpus\.jsonl:3: not JSON"):
        list(beir_corpus([path]))
    path.write_bytes(b"[1]\n")
    with pytest.raises(InvalidRequest, match="expected a JSON object, got list"):
        list(read_jsonl(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no corpus\.jsonl in"):
        list(beir_corpus([tmp_path]))
    with pytest.raises(InvalidRequest, match=r"no \*\.json file in"):
        list(locomo([tmp_path]))


def test_a_qrels_line_without_a_score_is_refused(beir: Path) -> None:
    (beir / "qrels.tsv").write_text("q1\td1\n")
    with pytest.raises(InvalidRequest, match=r"qrels\.tsv:1"):
        beir_queries(beir)


@pytest.fixture
def musique(tmp_path: Path) -> Path:
    write_lines(
        tmp_path / "corpus.jsonl",
        [
            {"_id": "m0", "title": "Hello Love", "text": "Hello Love is by Hank Snow."},
            {"_id": "m1", "title": "Hank Snow", "text": "He died in Tennessee."},
            {"_id": "m2", "title": "Lonely", "text": "No triples."},
        ],
    )
    write_lines(
        tmp_path / "triples.jsonl",
        [
            {
                "_id": "m0",
                "entities": ["Hello  Love", "Hank Snow"],
                "triples": [
                    ["Hello Love", "performed by", "HANK SNOW"],
                    ["Hello Love", "is", "a", "song"],
                    ["", "x", "y"],
                ],
            },
            {
                "_id": "m1",
                "entities": ["hank snow"],
                "triples": [["Hank Snow", "died in", "Tennessee"], ["Hello Love", "performed by", "Hank Snow"], []],
            },
        ],
    )
    write_lines(tmp_path / "queries.jsonl", [{"_id": "2hop__1", "text": "Where?", "answer": "Tennessee", "hops": 2}])
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n2hop__1\tm0\t1\n2hop__1\tm1\t1\n")
    return tmp_path


def test_musique_passages_meet_in_their_phrases(musique: Path) -> None:
    records = list(musique_graph([musique]))
    assert {tenant for tenant, _, _ in records} == {None}
    passages = {row["id"]: row for _, entity, row in records if entity == "passage"}
    phrases = {row["id"]: row["name"] for _, entity, row in records if entity == "phrase"}
    assert passages["m0"]["mentions"] == ["hello love", "hank snow", "song", "y"]
    assert passages["m1"]["mentions"] == ["hank snow", "tennessee", "hello love"]
    assert passages["m2"]["mentions"] == []
    assert phrases["hank snow"] == "Hank Snow"
    assert phrases["hello love"] == "Hello Love"


def test_musique_facts_are_whole_triples_once_each(musique: Path) -> None:
    facts = [row for _, entity, row in musique_graph([musique]) if entity == "fact"]
    assert [(fact["head"], fact["predicate"], fact["tail"]) for fact in facts] == [
        ("hello love", "performed by", "hank snow"),
        ("hank snow", "died in", "tennessee"),
    ]
    assert len({fact["id"] for fact in facts}) == 2


def test_musique_reads_named_files_like_a_folder(musique: Path) -> None:
    files = [musique / "triples.jsonl", musique / "corpus.jsonl"]
    assert list(musique_graph(files)) == list(musique_graph([musique]))


def test_musique_queries_know_their_hops(musique: Path) -> None:
    (query,) = musique_queries(musique)
    assert (query.kind, query.relevant) == ("2hop", (Ref("passage", "m0"), Ref("passage", "m1")))


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("ＡＢＣ  Corp", "abc corp"),
        (" Straße\tAm\u00a0See ", "strasse am see"),
        ("cafe\u0301", "café"),
        ("ΐ", "ΐ"),
        ("a\0b\ud800", "ab\ufffd"),
        (" \u3000 ", ""),
    ],
)
def test_spellings_of_a_phrase_share_an_id(spelling: str, expected: str) -> None:
    assert phrase_id(spelling) == expected


@given(st.text(min_size=1, max_size=2000))
def test_a_phrase_id_is_a_legal_row_id_and_its_own_fixed_point(phrase: str) -> None:
    folded = phrase_id(phrase)
    if folded:
        assert check_id(folded) == folded
        assert phrase_id(folded) == folded


CONVERSATION = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ann",
        "speaker_b": "Bo",
        "session_2_date_time": "10:00 am on 2 June, 2023",
        "session_2": [{"speaker": "Bo", "dia_id": "D2:1", "text": "Back again."}],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "Hi!"},
            {"speaker": "Bo", "dia_id": "D1:2", "text": "Look", "blip_caption": "a red bike", "img_url": ["u"]},
        ],
        "session_3_date_time": "never held",
    },
    "session_summary": {"session_1_summary": "They greet."},
    "qa": [
        {"question": "When?", "answer": 2023, "evidence": ["D1:01; D2:1"], "category": 2},
        {"question": "What?", "adversarial_answer": "a car", "evidence": ["D:1:2", "D9:9", "D"], "category": 5},
    ],
}


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([CONVERSATION]))
    return path


def test_locomo_sessions_are_dated_and_in_order(talk: Path) -> None:
    records = list(locomo([talk]))
    assert {tenant for tenant, _, _ in records} == {"conv-1"}
    sessions = [row for _, entity, row in records if entity == "session"]
    assert [(row["id"], row["date"], row["speakers"], row["summary"]) for row in sessions] == [
        ("conv-1:session_1", 20230508, ["Ann", "Bo"], "They greet."),
        ("conv-1:session_2", 20230602, ["Bo"], None),
    ]


def test_locomo_turns_link_to_their_session_and_the_next_turn(talk: Path) -> None:
    turns = [row for _, entity, row in locomo([talk.parent]) if entity == "turn"]
    assert [(row["id"], row["session"], row["next"], row["ordinal"]) for row in turns] == [
        ("conv-1:D1:1", "conv-1:session_1", "conv-1:D1:2", 0),
        ("conv-1:D1:2", "conv-1:session_1", None, 1),
        ("conv-1:D2:1", "conv-1:session_2", None, 2),
    ]
    assert turns[1]["caption"] == "a red bike"
    assert turns[1]["date"] == 20230508


def test_locomo_evidence_is_read_leniently_and_must_exist(talk: Path) -> None:
    temporal, adversarial = locomo_queries([talk])
    assert (temporal.kind, temporal.answers) == ("temporal", ("2023",))
    assert temporal.relevant == (Ref("turn", "conv-1:D1:1"), Ref("turn", "conv-1:D2:1"))
    assert adversarial.relevant == (Ref("turn", "conv-1:D1:2"),)
    assert (adversarial.answers, dict(adversarial.extra)) == ((), {"adversarial_answer": "a car"})


@pytest.mark.parametrize("text", ["", "noon", "1:56 pm on 31 June, 2023"])
def test_an_unreadable_day_is_no_day(text: str) -> None:
    assert locomo_day(text) is None


def test_hotpotqa_passages_are_read_once_and_facts_must_exist(tmp_path: Path) -> None:
    question = {
        "_id": "h1",
        "question": "Who?",
        "answer": "Ann",
        "type": "bridge",
        "supporting_facts": [["A", 1], ["A", 7], ["B", 0]],
        "context": [["A", ["One.", " Two."]], ["B", ["Three."]]],
    }
    (tmp_path / "h.json").write_text(json.dumps([question, {**question, "_id": "h2"}]))
    passages = [row for _, _, row in hotpotqa_passages([tmp_path / "h.json"])]
    assert [(row["id"], row["text"]) for row in passages] == [("A", "One. Two."), ("B", "Three.")]
    first, _ = hotpotqa_queries([tmp_path])
    assert first.relevant == (Ref("passage", "A"), Ref("passage", "B"))
    assert first.extra["facts"] == [["A", 1], ["B", 0]]


def test_timeqa_reads_a_page_once_and_finds_the_paragraphs_with_the_answer(tmp_path: Path) -> None:
    page = {
        "context": "X. Y.",
        "paragraphs": [{"title": "T ", "text": " owned by Eve"}, {"title": "T", "text": "sold"}],
    }
    rows = [
        {"idx": "/wiki/A#P1#0", "question": "Who in 1811?", "targets": ["Eve"], **page},
        {"idx": "/wiki/A#P1#1", "question": "Who in 1900?", "targets": [""], **page},
    ]
    path = write_lines(tmp_path / "t.jsonl", list(rows))
    assert [row["id"] for _, _, row in timeqa_paragraphs([path])] == ["/wiki/A#P1|0", "/wiki/A#P1|1"]
    answered, unanswerable = timeqa_queries([path])
    assert answered.relevant == (Ref("passage", "/wiki/A#P1|0"),)
    assert (unanswerable.answers, unanswerable.relevant) == ((), ())
    assert answered.extra == {"page": "/wiki/A#P1", "context": "X. Y."}


def test_qmsum_meetings_have_numbered_spans(tmp_path: Path) -> None:
    row = {
        "_id": "test0",
        "topics": [{"topic": "Law", "relevant_text_span": [["1", "16"], ["20", "21"]]}],
        "general": [{"query": "Summarize.", "answer": "They met."}],
    }
    write_lines(tmp_path / "meetings.jsonl", [row])
    (meeting,) = qmsum_meetings(tmp_path)
    assert meeting.topics[0].spans == ((1, 16), (20, 21))
    assert meeting.summaries == (("Summarize.", "They met."),)


# ---- the kept samples of the real sets: counts of their SOURCE.txt, where the sample is whole ------------------------


@real
@pytest.mark.parametrize(
    ("name", "count"), [("scifact", 5183), ("2wiki_corpus", 6119), ("xquad_en_zh", 480), ("musique", 1890)]
)
def test_published_corpora_have_their_published_counts(name: str, count: int) -> None:
    rows = [row for _, _, row in beir_corpus([DATA / name])]
    assert len(rows) == len({row["id"] for row in rows}) == count


@real
@pytest.mark.parametrize(("name", "queries", "judged"), [("scifact", 300, 339), ("xquad_en_zh", 2380, 2380)])
def test_published_queries_have_their_published_counts(name: str, queries: int, judged: int) -> None:
    found = beir_queries(DATA / name)
    assert (len(found), sum(len(query.relevant) for query in found)) == (queries, judged)


@real
def test_musique_graph_of_the_real_set_is_closed() -> None:
    records = list(musique_graph([DATA / "musique"]))
    phrases = {row["id"] for _, entity, row in records if entity == "phrase"}
    mentioned = {phrase for _, entity, row in records if entity == "passage" for phrase in row["mentions"]}
    ends = {row[end] for _, entity, row in records if entity == "fact" for end in ("head", "tail")}
    assert mentioned == phrases
    assert ends <= phrases
    passages = {row["id"] for _, entity, row in records if entity == "passage"}
    queries = musique_queries(DATA / "musique")
    assert {query.kind for query in queries} == {"2hop", "3hop", "4hop"}
    assert {ref.id for query in queries for ref in query.relevant} <= passages


@real
def test_locomo_of_the_real_set_is_closed() -> None:
    paths = [DATA / "locomo"]
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for tenant, entity, row in locomo(paths):
        assert tenant is not None
        check_tenant(tenant)
        assert (entity, str(row["id"])) not in rows
        rows[entity, str(row["id"])] = row
    assert all(row["date"] for row in rows.values())
    turns = [row for (entity, _), row in rows.items() if entity == "turn"]
    assert all(("session", row["session"]) in rows for row in turns)
    assert all(("turn", row["next"]) in rows for row in turns if row["next"])
    queries = locomo_queries(paths)
    assert all((ref.entity, ref.id) in rows for query in queries for ref in query.relevant)
    assert set(Counter(query.kind for query in queries)) == {
        "multi-hop",
        "temporal",
        "open-domain",
        "single-hop",
        "adversarial",
    }


@real
def test_hotpotqa_timeqa_and_qmsum_of_the_real_sets() -> None:
    hotpot = [DATA / "hotpotqa"]
    passages = {row["id"] for _, _, row in hotpotqa_passages(hotpot)}
    queries = hotpotqa_queries(hotpot)
    assert (len(passages), len(queries), sum(len(query.relevant) for query in queries)) == (994, 100, 200)
    assert all(ref.id in passages for query in queries for ref in query.relevant)
    hard = timeqa_queries([DATA / "timeqa" / "sentences_hard.jsonl"])
    assert len(hard) == 200
    assert sum(bool(query.relevant) for query in hard) > 150
    meetings = qmsum_meetings(DATA / "qmsum")
    turns = Counter(tenant for tenant, _, _ in beir_corpus([DATA / "qmsum"]))
    assert set(turns) == {meeting.id for meeting in meetings}
