"""SqlRows on SQLite: the suite in full, and what a file of its own can go through."""

from __future__ import annotations

from functools import partial

import pytest

from recall.planes.conformance.rows import DurableRowsConformance
from recall.planes.conformance.suite import Opener
from recall.planes.sql import SqlRows
from recall.settings import SqliteSettings


class TestSqliteRows(DurableRowsConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return partial(SqlRows.sqlite, SqliteSettings())
