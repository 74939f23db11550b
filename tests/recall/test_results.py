"""What travels between processes arrives as it was sent."""

import pickle

import pytest

from recall.results import Candidate, ChannelAnswer, Match, PathStep
from recall.rows import Ref, Row

REF = Ref("note", "1")
PATH = (PathStep("", False, Ref("asset", "a")), PathStep("ABOUT", True, REF))
CANDIDATE = Candidate(REF, 3, 0.25, Match(0, 1, 9, ("<em>pump</em>",)), PATH)


@pytest.mark.parametrize(
    "value",
    [
        Row(REF, 7, {"id": "1", "tags": ["a"], "cost": None}, "north", True),
        Row(REF, 1, {}),
        CANDIDATE,
        ChannelAnswer((CANDIDATE,)),
    ],
)
def test_pickled_values_come_back_equal(value):
    assert pickle.loads(pickle.dumps(value)) == value


def test_a_row_is_pickled_by_position():
    assert b"version" not in pickle.dumps(Row(REF, 1, {}))
