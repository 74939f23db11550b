"""The PostgreSQL server that the tests of this room share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from servers.availability import CannotStart, unavailable
from servers.postgres import PASSWORD, PASSWORD_ENV, PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    os.environ[PASSWORD_ENV] = PASSWORD
    try:
        with postgres_server() as server:
            yield server
    except CannotStart as reason:
        unavailable(reason)
