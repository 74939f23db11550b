"""Sending records again when a store says it may help: the whole call, or only the records that failed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from recall.errors import TransientStoreError
from recall.ports import WriteFailure, WriteReport

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


Result = TypeVar("Result")


def patiently(call: Callable[[], Result], retries: int, pause: Callable[[float], None] = time.sleep) -> Result:
    """The result of `call`, repeated with growing pauses while it raises TransientStoreError."""
    for attempt in range(retries):
        try:
            return call()
        except TransientStoreError:
            _wait(attempt, pause)
    return call()


def write_with_retries(
    write: Callable[[frozenset[str] | None], WriteReport],
    retries: int,
    pause: Callable[[float], None] = time.sleep,
) -> WriteReport:
    """Call `write(None)` for all records, then `write(keys)` for those that failed and may succeed later.

    Between calls it pauses, doubling from 0.2 s to 10 s, with jitter. What still fails is in the report, no longer
    called transient. Raises TransientStoreError when the whole call keeps failing.
    """
    total = WriteReport()
    keys: frozenset[str] | None = None
    for attempt in range(retries + 1):
        try:
            report = write(keys)
        except TransientStoreError:
            if attempt == retries:
                raise
        else:
            again = [failure for failure in report.failures if failure.transient]
            final = [failure for failure in report.failures if not failure.transient]
            if attempt == retries:
                final += [WriteFailure(f.key, f"{f.reason} (after {retries + 1} attempts)", False) for f in again]
                again = []
            total = _sum(total, report, final)
            if not again:
                return total
            keys = frozenset(failure.key for failure in again)
        _wait(attempt, pause)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _wait(attempt: int, pause: Callable[[float], None]) -> None:
    # Jitter, so that writers that failed together do not come back together.
    pause(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0))


def _sum(total: WriteReport, report: WriteReport, failures: list[WriteFailure]) -> WriteReport:
    return WriteReport(total.written + report.written, total.stale + report.stale, total.failures + tuple(failures))
