"""What a test does when the server it needs cannot be started: skip for all to see, or fail where that is demanded."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


class CannotStart(Exception):
    """The server cannot be started here; says why, and how it could be."""


def unavailable(reason: object) -> NoReturn:
    """Skip the test with the reason; an error under CI=true or RECALL_REQUIRE_SERVERS=1."""
    if os.environ.get("CI") == "true" or os.environ.get("RECALL_REQUIRE_SERVERS") == "1":
        pytest.fail(f"needed, and not there: {reason}", pytrace=False)
    pytest.skip(str(reason))
