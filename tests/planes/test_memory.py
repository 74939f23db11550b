"""The planes in memory pass the suite in full; they are what other adapters are compared with."""

from __future__ import annotations

import pytest

from recall.planes.conformance.graph import GraphConformance
from recall.planes.conformance.rows import RowsConformance
from recall.planes.conformance.search import SearchConformance
from recall.planes.conformance.suite import Opener
from recall.planes.conformance.vector import VectorConformance
from recall.planes.memory_graph import MemoryGraph
from recall.planes.memory_rows import MemoryRows
from recall.planes.memory_search import MemorySearch
from recall.planes.memory_vectors import MemoryVectors


class TestMemoryRows(RowsConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return MemoryRows


class TestMemoryVectors(VectorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return MemoryVectors


class TestMemorySearch(SearchConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return MemorySearch


class TestMemoryGraph(GraphConformance):
    traversable = False

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return MemoryGraph
