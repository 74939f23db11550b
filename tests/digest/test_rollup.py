"""The roll-up plan: limits, coverage, stability, independence of order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.digest.rollup import Child, Limits, plan, spread

LIMITS = Limits(max_fan_in=4, input_budget=400, output_budget=100)


def children(names, tokens=60):
    return [Child(name, spread(name), tokens) for name in names]


names = st.lists(st.integers(0, 10_000).map(str), unique=True, max_size=120)


def leaves(calls, node, known):
    if node in known:
        return [node]
    call = next(call for call in calls if call.id == node)
    return [leaf for child in call.children for leaf in leaves(calls, child, known)]


@given(names, st.integers(1, 100))
def test_every_call_fits_and_every_child_is_under_the_parent_once(ids, tokens):
    kids = children(ids, tokens)
    calls = plan("p", kids, LIMITS)
    sizes = {kid.id: tokens for kid in kids} | {call.id: LIMITS.output_budget for call in calls}
    for call in calls:
        assert len(call.children) <= LIMITS.max_fan_in
        assert sum(sizes[child] for child in call.children) <= LIMITS.input_budget
    if ids:
        assert calls[-1].id == "p"
        assert sorted(leaves(calls, "p", set(ids))) == sorted(ids)
    else:
        assert calls == []


@given(names, st.randoms())
def test_plan_does_not_depend_on_the_order_of_children(ids, random):
    shuffled = list(ids)
    random.shuffle(shuffled)
    assert plan("p", children(ids), LIMITS) == plan("p", children(shuffled), LIMITS)


@given(names)
def test_a_call_needs_only_lower_ones(ids):
    heights = {call.id: call.height for call in plan("p", children(ids), LIMITS)}
    for call in plan("p", children(ids), LIMITS):
        assert all(heights.get(child, 0) < call.height for child in call.children)


@given(st.lists(st.integers(0, 10_000).map(str), unique=True, min_size=2, max_size=120))
def test_one_new_child_changes_one_path(ids):
    before = {(call.id, call.children) for call in plan("p", children(ids[1:]), LIMITS)}
    after = plan("p", children(ids), LIMITS)
    changed = [call for call in after if (call.id, call.children) not in before]
    depth = max(call.height for call in after)
    # A full part splits into at most `max_fan_in` + 1 parts; everything else that changes lies on the way up.
    assert len(changed) <= depth + LIMITS.max_fan_in + 1


def test_calls_and_depth_grow_as_they_should():
    kids = children([str(n) for n in range(20_000)], tokens=100)
    limits = Limits()
    calls = plan("p", kids, limits)
    assert len(calls) <= 2.5 * len(kids) / limits.max_fan_in
    assert max(call.height for call in calls) <= 2 + math.ceil(math.log(len(kids), 8))


def test_equal_keys_are_refused():
    with pytest.raises(ValueError, match="distinct keys"):
        plan("p", [Child("a", "01", 1), Child("b", "01", 1)], LIMITS)
