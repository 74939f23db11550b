"""The LanceDB vector plane through the conformance suite: on flat scans, and where every table has its indexes."""

from __future__ import annotations

from functools import partial

import pytest

from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.suite import Opener
from recall.planes.conformance.vector import VectorConformance
from recall.planes.lance import LanceVectors
from recall.settings import LanceDbSettings


class TestLanceVectors(VectorConformance, DurableConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return partial(LanceVectors, LanceDbSettings())


class TestLanceVectorsWithBuiltIndexes(VectorConformance):
    """The same promises where every table of 256 chunks or more has its vector and scalar indexes."""

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return partial(LanceVectors, LanceDbSettings(index_from=256, optimize_every=3))
