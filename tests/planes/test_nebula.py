"""The graph plane in NebulaGraph passes the suite: on the stand-in, or on the server that RECALL_TEST_NEBULA_ADDRESSES
names (comma-separated `host:port`; user root, password in RECALL_TEST_NEBULA_PASSWORD or the shipped one)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest
from standins.nebula import Server
from standins.nebula.shapes import shape

from recall.planes.conformance.corpus import corpus
from recall.planes.conformance.data import Record
from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.graph import GraphConformance
from recall.planes.conformance.outage import OutageConformance
from recall.planes.conformance.suite import Opener
from recall.planes.nebula import NebulaGraph
from recall.planes.nebula_replay import read_shapes
from recall.settings import NebulaSettings

ADDRESSES = os.environ.get("RECALL_TEST_NEBULA_ADDRESSES")
PASSWORD = "RECALL_TEST_NEBULA_PASSWORD"


def nebula_settings(server: Server | None, **options: object) -> NebulaSettings:
    """Settings for the stand-in, or for the real server when there is none."""
    if server is not None:
        return NebulaSettings.model_validate(
            {"kind": "nebula", "addresses": [server.address], "heartbeat_s": 0, "schema_wait_s": 5, **options}
        )
    assert ADDRESSES is not None
    password = PASSWORD if PASSWORD in os.environ else None
    return NebulaSettings.model_validate(
        {"kind": "nebula", "addresses": ADDRESSES.split(","), "password_env": password, "partition_num": 1, **options}
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server | None]:
    if ADDRESSES is not None:
        yield None
        return
    with Server() as server:
        yield server


class TestSharedSpace(GraphConformance, DurableConformance, OutageConformance):
    traversable = False

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, server: Server | None) -> Opener:
        return partial(NebulaGraph, nebula_settings(server, read_rows=2500))

    @pytest.fixture
    def outage(self, server: Server | None) -> Callable[[], AbstractContextManager[None]]:
        if server is None:
            pytest.skip("a server of somebody else's is not stopped")

        @contextmanager
        def out() -> Iterator[None]:
            server.stop()
            try:
                yield
            finally:
                server.start()

        return out


class TestDedicatedSpaces(GraphConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, server: Server | None) -> Opener:
        return partial(NebulaGraph, nebula_settings(server, isolation="dedicated", space="own"))

    @pytest.fixture(scope="class")
    @classmethod
    def records(cls) -> Sequence[Record]:
        # The filters are the same text as in a shared space, where the whole corpus is asked.
        return corpus(300)


class TestShapes:
    """Last in this file, so that all statements of the suite have been sent."""

    def test_every_statement_that_was_sent_has_its_shape_in_the_file(self, server: Server | None) -> None:
        if server is None or len(server.statements) < 1000:
            pytest.skip("the suite did not run on the stand-in before this test")
        known = [shape(entry.statement) for entry in read_shapes()]
        frames = {frame for frame, _ in known}
        conditions = frozenset[str]().union(*(found for _, found in known))
        # Inserts differ in their rows only: one of each kind tells.
        kinds = {sent.split(" VALUES ")[0]: sent for sent in server.statements if not sent.startswith("USE ")}
        sent = {shape(statement) for statement in kinds.values()}
        assert {frame for frame, _ in sent} - frames == set()
        assert frozenset[str]().union(*(found for _, found in sent)) - conditions == set()
