"""A writer in a process of its own, killed in the middle of its work."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from recall.planes.opening import PlaneContext

# Of a fresh interpreter that opens a store on a busy machine.
_PATIENCE_S = 60


def kill_after(batches: int, write: Callable[[PlaneContext, Connection], None], context: PlaneContext) -> int:
    """Kill `write` once it has sent `batches` numbers down its pipe, counting from 0; the last one that it sent."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    writer = spawn.Process(target=write, args=(context, there), daemon=True)
    writer.start()
    acknowledged = -1
    while acknowledged + 1 < batches:
        assert here.poll(_PATIENCE_S)
        acknowledged = here.recv()
    writer.kill()
    writer.join()
    writer.close()
    while here.poll():
        acknowledged = here.recv()
    return acknowledged
