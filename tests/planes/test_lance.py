"""The LanceDB vector plane: the conformance suite on flat scans and on built indexes, processes, crashes, versions."""

from __future__ import annotations

from functools import partial

import pytest

from recall.planes.conformance.suite import Opener
from recall.planes.conformance.vector import VectorConformance
from recall.planes.lance import LanceVectors
from recall.planes.opening import PlaneContext
from recall.settings import LanceDbSettings


def _open(settings: LanceDbSettings, context: PlaneContext) -> LanceVectors:
    return LanceVectors(settings, context)


class TestLanceVectors(VectorConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return partial(_open, LanceDbSettings())


class TestLanceVectorsWithBuiltIndexes(VectorConformance):
    """The same promises where every table of 256 chunks or more has its vector and scalar indexes."""

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return partial(_open, LanceDbSettings(index_from=256, optimize_every=3))
