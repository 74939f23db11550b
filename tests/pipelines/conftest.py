"""One Ray for all tests that need it, and a tenant with rows to back-fill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.context import ray_session
from recall.settings import Settings


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray whose workers can import the helpers beside these tests."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    with ray_session(Settings()):
        yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
