"""The graph plane in ladybug: the conformance suite, and what only an embedded store has."""

from __future__ import annotations

import pytest

from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.graph import GraphConformance
from recall.planes.conformance.suite import Opener
from recall.planes.ladybug import LadybugGraph
from recall.planes.opening import PlaneContext
from recall.settings import LadybugSettings


def open_ladybug(context: PlaneContext) -> LadybugGraph:
    return LadybugGraph(LadybugSettings(), context)


@pytest.fixture(scope="module")
def opener() -> Opener:
    return open_ladybug


class TestLadybug(GraphConformance, DurableConformance):
    pass
