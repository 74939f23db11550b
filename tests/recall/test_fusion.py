"""Fusion and packing: the published formulas, order independence, total order, budgets never exceeded."""

import math

from hypothesis import given
from hypothesis import strategies as st

from recall.fusion import contributions, convex, fuse, rrf
from recall.packing import pack, quarter_bytes
from recall.results import Candidate
from recall.rows import Ref


def ranked(*ids: str, scores: tuple[float, ...] | None = None) -> tuple[Candidate, ...]:
    values = scores or tuple(1.0 / (position + 1) for position in range(len(ids)))
    return tuple(Candidate(Ref("note", id_), rank, values[rank - 1]) for rank, id_ in enumerate(ids, 1))


def order(ranking) -> list[str]:
    return [ref.id for ref in ranking.refs]


def test_item_found_by_two_channels_comes_first():
    answers = {"vector": ranked("a", "b"), "search": ranked("b", "c")}
    ranking = rrf(answers, {})
    assert order(ranking) == ["b", "a", "c"]
    assert ranking.scores[Ref("note", "b")] == 1 / 62 + 1 / 61


def test_weight_decides_between_channels():
    answers = {"vector": ranked("a"), "search": ranked("b")}
    assert order(rrf(answers, {"search": 10.0})) == ["b", "a"]
    assert order(rrf(answers, {"vector": 10.0})) == ["a", "b"]


def test_ref_listed_three_times_by_a_channel_counts_once_with_its_best_rank():
    repeated = tuple(Candidate(Ref("note", "d1"), rank, 0.5) for rank in (1, 2, 3)) + ranked("x", "x", "x", "d2")[3:]
    ranking = rrf({"vector": repeated}, {})
    assert ranking.scores[Ref("note", "d1")] == 1 / 61
    assert ranking.scores[Ref("note", "d2")] == 1 / 64


def test_ties_are_broken_by_entity_then_id():
    answers = {
        "vector": (Candidate(Ref("note", "b"), 1, 0.9),),
        "search": (Candidate(Ref("note", "a"), 1, 3.0),),
        "graph": (Candidate(Ref("asset", "z"), 1, 1.0),),
    }
    assert rrf(answers, {}).refs == (Ref("asset", "z"), Ref("note", "a"), Ref("note", "b"))


def test_convex_scales_each_channel_to_its_best():
    answers = {
        "vector": ranked("a", "b", scores=(0.8, -0.1)),
        "search": ranked("b", "c", scores=(12.0, 0.0)),
        "graph": ranked("c", scores=(0.5,)),
    }
    scores = convex(answers, {"vector": 0.8, "search": 0.2, "graph": 1.0}).scores
    assert math.isclose(scores[Ref("note", "a")], 0.8)
    assert math.isclose(scores[Ref("note", "b")], 0.8 * 0.9 / 1.8 + 0.2)
    assert math.isclose(scores[Ref("note", "c")], 0.5)


def test_zero_and_negative_scores_are_kept():
    answers = {"vector": ranked("a", "b", "c", scores=(0.0, -0.2, -1.0)), "search": ranked("d", scores=(0.0,))}
    assert len(convex(answers, {}).refs) == 4
    assert len(rrf(answers, {}).refs) == 4


candidates = st.lists(st.integers(0, 30), unique=True, max_size=15).map(lambda ids: ranked(*(f"{i:02}" for i in ids)))
answer_sets = st.fixed_dictionaries({"vector": candidates, "search": candidates, "graph": candidates})
weights = st.fixed_dictionaries({name: st.floats(0, 10) for name in ("vector", "search", "graph")})


@given(answer_sets, weights, st.permutations(["vector", "search", "graph"]), st.sampled_from(["rrf", "convex"]))
def test_result_does_not_depend_on_channel_order(answers, weight, names, method):
    shuffled = {name: answers[name] for name in names}
    one, other = fuse(method, answers, weight), fuse(method, shuffled, weight)
    assert one.refs == other.refs
    assert dict(one.scores) == dict(other.scores)


@given(answer_sets, weights, st.sampled_from(["rrf", "convex"]))
def test_order_is_total_and_contributions_sum_to_the_score(answers, weight, method):
    ranking = fuse(method, answers, weight)
    keys = [(-ranking.scores[ref], ref) for ref in ranking.refs]
    assert keys == sorted(keys)
    for ref, shares in contributions(method, answers, weight, ranking.refs).items():
        assert sum(share.contribution for share in shares) == ranking.scores[ref]
        assert [share.channel for share in shares] == sorted(share.channel for share in shares)


@given(candidates, st.sampled_from(["vector", "search"]))
def test_single_weight_gives_the_channels_own_order(answer, name):
    other = {"vector": "search", "search": "vector"}[name]
    ranking = rrf({name: answer, other: ranked("zz")}, {name: 1.0, other: 0.0})
    assert [ref.id for ref in ranking.refs if ref.id != "zz"] == [one.ref.id for one in answer]


def test_packing_examples():
    assert pack("prefix", [40, 40, 40], 100).kept == (0, 1)
    assert pack("prefix", [40, 40, 40], 100).tokens == 80
    assert pack("prefix", [50, 50], 100).kept == (0, 1)
    assert pack("prefix", [200, 10], 100).kept == ()
    assert pack("fill", [200, 10], 100).kept == (1,)


sizes_and_budget = st.tuples(st.lists(st.integers(0, 500), max_size=40), st.integers(1, 1000))


@given(sizes_and_budget, st.sampled_from(["prefix", "fill"]))
def test_budget_is_never_exceeded(pair, packer):
    sizes, budget = pair
    packed = pack(packer, sizes, budget)
    assert packed.tokens == sum(sizes[position] for position in packed.kept) <= budget
    assert list(packed.kept) == sorted(set(packed.kept))


@given(sizes_and_budget)
def test_prefix_keeps_the_longest_prefix_and_fill_nothing_less(pair):
    sizes, budget = pair
    prefix, fill = pack("prefix", sizes, budget), pack("fill", sizes, budget)
    assert prefix.kept == tuple(range(len(prefix.kept)))
    if len(prefix.kept) < len(sizes):
        assert prefix.tokens + sizes[len(prefix.kept)] > budget
    assert set(prefix.kept) <= set(fill.kept)


def test_prefix_reads_no_further_than_the_first_item_that_does_not_fit():
    read = []
    pack("prefix", (read.append(size) or size for size in [10, 200, 1, 1]), 100)
    assert read == [10, 200]


def test_default_tokenizer_rounds_up_quarter_bytes():
    assert [quarter_bytes(b"x" * n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert quarter_bytes(b"<|endoftext|>") == 4
