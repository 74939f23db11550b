"""The search plane in tantivy: the conformance suite, and what only an embedded store has."""

from __future__ import annotations

import pytest

from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.search import SearchConformance
from recall.planes.conformance.suite import Opener
from recall.planes.opening import PlaneContext
from recall.planes.tantivy import TantivySearch
from recall.settings import TantivySettings


def open_tantivy(context: PlaneContext) -> TantivySearch:
    return TantivySearch(TantivySettings(), context)


@pytest.fixture(scope="module")
def opener() -> Opener:
    return open_tantivy


class TestTantivy(SearchConformance, DurableConformance):
    pass
