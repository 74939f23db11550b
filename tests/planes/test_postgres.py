"""SqlRows on PostgreSQL through the suite in full: tables that all tenants share, and a schema for each tenant.

On a server of its own, or on that of RECALL_TEST_POSTGRES_DSN: a URL whose role is no superuser and may make schemas.
"""

from __future__ import annotations

import os
from functools import partial

import pytest
from servers.postgres import postgres_settings

from recall.planes.conformance.durable_rows import DurableRowsConformance
from recall.planes.conformance.suite import Opener
from recall.planes.sql import SqlRows

pytestmark = pytest.mark.server

DSN_ENV = "RECALL_TEST_POSTGRES_DSN"


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest) -> dict[str, object]:
    if DSN_ENV in os.environ:
        return {"port": 5432, "url_env": DSN_ENV}
    return {"port": request.getfixturevalue("postgres").port}


class TestSharedTables(DurableRowsConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, address: dict[str, object]) -> Opener:
        return partial(SqlRows.postgres, postgres_settings(**address))


class TestSchemaPerTenant(DurableRowsConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls, address: dict[str, object]) -> Opener:
        return partial(SqlRows.postgres, postgres_settings(**address, isolation="dedicated"))
