"""Leases on tenants as locked files: one writing job per tenant on this machine, freed by the kernel when it dies."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recall.errors import Busy, TerminalStoreError


class FileLeases:
    """One lock file per tenant in `folder`; its text names the holder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def hold(self, tenant: str, purpose: str) -> Iterator[None]:
        """Hold `tenant`; raises Busy naming who does."""
        path = self._folder / f"{tenant}.lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise TerminalStoreError("rows (lease)", str(path), f"{error}: make the folder writable") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another job"
                raise Busy(f"tenant {tenant!r} is held by {holder}: wait for it, or stop that process") from None
            file.truncate(0)
            file.write(f"{purpose} (process {os.getpid()} on {socket.gethostname()})")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)
