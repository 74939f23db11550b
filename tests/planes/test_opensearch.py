"""The search plane in OpenSearch: the conformance suite on real servers, shared and dedicated indexes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest
from opensearchpy import OpenSearch
from servers.availability import CannotStart, unavailable
from servers.opensearch import opensearch_node
from standins.line import Line

from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.outage import OutageConformance
from recall.planes.conformance.search import SearchConformance
from recall.planes.conformance.suite import Opener
from recall.planes.opening import PlaneContext
from recall.planes.opensearch import OpenSearchSearch
from recall.settings import OpenSearchSettings

pytestmark = pytest.mark.server
URL = os.environ.get("RECALL_TEST_OPENSEARCH_URL")


def open_opensearch(context: PlaneContext, **settings: object) -> OpenSearchSearch:
    return OpenSearchSearch(OpenSearchSettings(kind="opensearch", replicas=0, **settings), context)


@pytest.fixture(scope="module", params=[URL] if URL else [2, 3], ids=str)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of each major version that starts here, or the one that RECALL_TEST_OPENSEARCH_URL names."""
    if isinstance(request.param, str):
        yield request.param
        return
    try:
        with opensearch_node(request.param, tmp_path_factory.mktemp("opensearch")) as node:
            yield node.url
    except CannotStart as reason:
        unavailable(reason)


@pytest.fixture(scope="class")
def index(url: str) -> Iterator[str]:
    """Prefix of everything that a class creates; gone afterwards."""
    prefix = f"t{uuid.uuid4().hex[:10]}"
    yield prefix
    with OpenSearch([url], timeout=60) as client:
        client.indices.delete(index=f"{prefix}-*")
        client.indices.delete_index_template(name=f"{prefix}-*")


class TestOpenSearch(SearchConformance, DurableConformance, OutageConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def line(cls, url: str) -> Iterator[Line]:
        host, _, port = url.rpartition("://")[2].rstrip("/").partition(":")
        if host not in ("127.0.0.1", "localhost"):
            pytest.skip("a line to cut leads to servers on this machine only")
        line = Line(int(port))
        yield line
        line.cut()

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, line: Line, index: str) -> Opener:
        return partial(open_opensearch, hosts=(f"http://127.0.0.1:{line.port}",), index=index)

    @pytest.fixture
    def outage(self, line: Line) -> Callable[[], AbstractContextManager[None]]:
        return line.outage


# On one version: what differs is the adapter's doing, and a hundred indexes take their time.
@pytest.mark.parametrize("url", [URL or 3], ids=str, indirect=True)
class TestOpenSearchDedicated(SearchConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, url: str, index: str) -> Opener:
        return partial(open_opensearch, hosts=(url,), index=index, isolation="dedicated", shards=2)
