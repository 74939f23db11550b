"""The graph plane in NebulaGraph passes the suite: on the stand-in, or on the server that RECALL_TEST_NEBULA_ADDRESSES
names (comma-separated `host:port`; user root, password in RECALL_TEST_NEBULA_PASSWORD or the shipped one)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest
from standins.nebula import Server

from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.graph import GraphConformance
from recall.planes.conformance.outage import OutageConformance
from recall.planes.conformance.suite import Opener
from recall.planes.nebula import NebulaGraph
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


class TestSharedSpace(GraphConformance, DurableConformance):
    traversable = False

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, server: Server | None) -> Opener:
        return partial(NebulaGraph, nebula_settings(server))


class TestDedicatedSpaces(GraphConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, server: Server | None) -> Opener:
        return partial(NebulaGraph, nebula_settings(server, isolation="dedicated", space="own"))


@pytest.mark.skipif(ADDRESSES is not None, reason="a server of somebody else's is not stopped")
class TestOutage(OutageConformance, GraphConformance):
    """Only the tests of outages; everything else has run above."""

    traversable = False

    @pytest.fixture(scope="class")
    @classmethod
    def own_server(cls) -> Iterator[Server]:
        with Server() as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, own_server: Server) -> Opener:
        return partial(NebulaGraph, nebula_settings(own_server))

    @pytest.fixture
    def outage(self, own_server: Server) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def out() -> Iterator[None]:
            own_server.stop()
            try:
                yield
            finally:
                own_server.start()

        return out
