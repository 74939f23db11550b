"""One `with` around a job: Ray started small and quiet, Ray Data set for whole blocks and typed errors."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.data import DataContext
from ray.exceptions import RayError

from recall.errors import RecallError, TerminalStoreError
from recall.settings import Settings

# Read by Ray when it starts; what the operator has set stays. Without the last one its C++ half prints remarks about
# healthy jobs (ray#53727) on the job's stderr.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}


@contextmanager
def ray_session(settings: Settings) -> Iterator[None]:
    """Ray for the length of a job: a local one capped by `settings.pipeline`, or the cluster that RAY_ADDRESS names.

    A Ray that is already running in this process is used and left running.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ours = not ray.is_initialized()
    if ours:
        _start(settings)
    try:
        with _quiet(), DataContext.current(_data_context()):
            yield
    finally:
        if ours:
            ray.shutdown()


def _start(settings: Settings) -> None:
    address = os.environ.get("RAY_ADDRESS")
    size = settings.pipeline
    capped: dict[str, object] = {
        "num_cpus": size.logical_cpus,
        "object_store_memory": size.object_store_mb * 2**20,
        "include_dashboard": False,
    }
    with warnings.catch_warnings(), _no_stderr():
        warnings.simplefilter("ignore")
        # `local` keeps a job from joining whatever Ray happens to run on the machine.
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else capped)
        )


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Ray's C++ half announces its log level on file descriptor 2; errors of the start are exceptions anyway."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _data_context() -> DataContext:
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    # A row's chunks must reach the store together: Ray must not cut blocks. Parts bound their size instead.
    context.target_max_block_size = None
    return context


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray's own remarks go to its log files, not between the lines of the job."""
    handlers = logging.getLogger("ray.data").handlers
    filtered = [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
    for handler in filtered:
        handler.addFilter(_never)
    with warnings.catch_warnings():
        # Ray warns about its own settings when it copies them.
        warnings.filterwarnings("ignore", module=r"ray\..*")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=r".*is deprecated.*")
        try:
            yield
        finally:
            for handler in filtered:
                handler.removeFilter(_never)


def _never(_: logging.LogRecord) -> bool:
    return False


@contextmanager
def recall_errors(job: str) -> Iterator[None]:
    """A RecallError of a Ray task leaves here as itself, anything else of Ray's as a TerminalStoreError."""
    try:
        yield
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, RecallError):
            raise cause from None
        lines = str(error).strip().splitlines() or [""]
        detail = f"{type(error).__name__}: {lines[-1]}; run it again to resume"
        raise TerminalStoreError("ray", job, detail) from error
