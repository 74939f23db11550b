"""The extractive summarizer: within budget, in source order, cited, and about what the source keeps coming back to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recall.model_ports import Summary, SummaryTask
from recall.models.extractive import MAX_SENTENCES, ExtractiveSummarizer, cut, sentences, without_torn_end
from recall.models.hashing import HashEmbedder
from recall.packing import quarter_bytes

SUMMARIZER = ExtractiveSummarizer(HashEmbedder(64))
words = st.sampled_from(["pump", "seal", "leak", "site", "valve", "motor", "heat", "stop", "认证系统", "café"])
sentence = st.lists(words, min_size=1, max_size=9).map(lambda some: " ".join(some) + ".")
text = st.lists(sentence, max_size=12).map(" ".join)


def one(task: SummaryTask) -> Summary:
    (summary,) = SUMMARIZER.summarize([task])
    return summary


@given(st.lists(text, max_size=6), st.integers(1, 80))
def test_never_over_budget_in_source_order_and_cited(texts: list[str], budget: int) -> None:
    summary = one(SummaryTask(1, tuple(texts), budget))
    assert quarter_bytes(summary.text.encode()) <= budget
    assert summary.cited == tuple(sorted(set(summary.cited)))
    assert set(summary.cited) <= set(range(len(texts)))
    source = list(dict.fromkeys(piece for part in texts for piece in sentences(part)))
    kept = sentences(summary.text)
    if all(piece in source for piece in kept):
        assert [source.index(piece) for piece in kept] == sorted(source.index(piece) for piece in kept)
    assert bool(summary.text) == any(part.strip() for part in texts) or budget < 4


@given(st.lists(text, min_size=1, max_size=4), st.integers(16, 80))
def test_the_batch_does_not_matter(texts: list[str], budget: int) -> None:
    tasks = [SummaryTask(1, (part,), budget) for part in texts]
    assert SUMMARIZER.summarize(tasks) == [one(task) for task in tasks]


def test_a_source_that_fits_is_kept_whole() -> None:
    assert one(SummaryTask(0, ("One. Two.", "Three."), 50)) == Summary("One. Two. Three.", (0, 1))


def test_what_the_source_comes_back_to_is_kept_and_small_talk_is_not() -> None:
    texts = (
        "Good morning everyone. The seal of pump P-7 leaks at the north site.",
        "Nice weather again. We must replace the seal of pump P-7 before Friday.",
        "I had pancakes. North site cannot run pump P-7 while the seal leaks.",
        "See you. Bye.",
    )
    kept = sentences(one(SummaryTask(1, texts, 16)).text)[0]
    assert "seal" in kept
    assert "P-7" in kept


def test_interjections_are_passed_over_unless_there_is_nothing_else() -> None:
    texts = ("Mm .", "Yeah .", "The seal of pump P-7 leaks at the north site.", "Okay .", "Hm .")
    assert one(SummaryTask(1, texts, 16)).text == "The seal of pump P-7 leaks at the north site."
    assert one(SummaryTask(1, ("Mm .", "Yeah .", "Okay .", "Right ."), 3)).text


def test_nothing_is_said_twice() -> None:
    texts = ("The valve is stuck open.", "The valve is stuck open.", "The motor is hot.", "Ring the bell.")
    summary = one(SummaryTask(1, texts, 13))
    assert summary.text.count("valve") == 1
    assert "motor" in summary.text


def test_the_end_of_a_very_long_source_is_looked_at_too() -> None:
    early = [f"Row {number} of nothing in particular." for number in range(4 * MAX_SENTENCES)]
    late = [f"Alarm {number}: boiler pressure over the limit." for number in range(2 * MAX_SENTENCES)]
    summary = one(SummaryTask(0, (" ".join(early + late),), 60))
    assert "boiler" in summary.text


def test_a_first_sentence_longer_than_the_budget_is_cut_at_a_word() -> None:
    summary = one(SummaryTask(0, ("word " * 200,), 10))
    assert summary.text
    assert set(summary.text.split()) == {"word"}


def test_identical_texts_cost_one_sentence() -> None:
    assert one(SummaryTask(1, ("Same.",) * 500, 16)).text == "Same."


def test_cutting_prefers_sentences_then_words() -> None:
    assert cut("One two. Three four. Five.", 5, quarter_bytes) == "One two. Three four."
    assert cut("onetwothree fourfivesix", 3, quarter_bytes) == "onetwothree"
    assert cut("认证系统使用令牌", 3, quarter_bytes) == "认证系统"


def test_a_torn_end_is_left_out_unless_it_is_all_there_is() -> None:
    assert without_torn_end("It stopped. The seal was") == "It stopped."
    assert without_torn_end("It stopped. Twice!") == "It stopped. Twice!"
    assert without_torn_end("The seal was") == "The seal was"
    assert without_torn_end("") == ""
