"""The Milvus vector plane through the conformance suite: on Milvus Lite, on the real 2.3.5, on any server by URI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from uuid import uuid4

import pytest
from servers.availability import unavailable
from standins.line import Line
from standins.milvus import CannotStart, lite_server, real_server

from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.outage import OutageConformance
from recall.planes.conformance.suite import Opener
from recall.planes.conformance.vector import VectorConformance
from recall.planes.milvus import MilvusVectors
from recall.settings import MilvusSettings

pytestmark = pytest.mark.server


def settings(uri: str, **options: object) -> MilvusSettings:
    raw = {"kind": "milvus", "uri": uri, "collection": f"t{uuid4().hex[:8]}", "read_timeout_s": 20, **options}
    return MilvusSettings.model_validate(raw)


@contextmanager
def line_to(server: AbstractContextManager[int]) -> Iterator[Line]:
    try:
        port = server.__enter__()
    except CannotStart as reason:
        unavailable(f"Milvus cannot be started: {reason}")
    line = Line(port)
    try:
        yield line
    finally:
        line.cut()
        server.__exit__(None, None, None)


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with line_to(lite_server(tmp_path_factory.mktemp("lite"))) as line:
        yield line


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with line_to(real_server(tmp_path_factory.mktemp("milvus"))) as line:
        yield line


class OnLite(VectorConformance, DurableConformance, OutageConformance):
    @pytest.fixture
    def outage(self, lite: Line) -> Callable[[], AbstractContextManager[None]]:
        return lite.outage


class TestSharedCollectionOnLite(OnLite):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, lite: Line) -> Opener:
        return partial(MilvusVectors, settings(f"http://127.0.0.1:{lite.port}", index={"kind": "FLAT"}))


class TestSharedCollectionOnServer(VectorConformance, DurableConformance, OutageConformance):
    @pytest.fixture
    def outage(self, real: Line) -> Callable[[], AbstractContextManager[None]]:
        return real.outage

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, real: Line) -> Opener:
        return partial(MilvusVectors, settings(f"http://127.0.0.1:{real.port}"))


if uri := os.environ.get("RECALL_TEST_MILVUS_URI"):

    class TestServerByUri(VectorConformance, DurableConformance):
        """Any server; RECALL_TEST_MILVUS_TOKEN holds its token if it wants one."""

        @pytest.fixture(scope="class")
        @classmethod
        def opener(cls) -> Opener:
            token = "RECALL_TEST_MILVUS_TOKEN"
            return partial(MilvusVectors, settings(str(uri), token_env=token if token in os.environ else None))
