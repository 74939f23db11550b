"""The clients of one store: a synchronous one for writing, an asynchronous one for each event loop that reads."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from recall.errors import TerminalStoreError


class Writing(Protocol):
    def close(self) -> None: ...


class Reading(Protocol):
    async def close(self) -> None: ...


W = TypeVar("W", bound=Writing)
R = TypeVar("R", bound=Reading)


class Clients(Generic[W, R]):
    """Made at their first use, closed together. Safe in any number of threads and event loops."""

    def __init__(self, writer: Callable[[], W], reader: Callable[[], R], store: str, address: str) -> None:
        self._make_writer = writer
        self._make_reader = reader
        self._store = store
        self._address = address
        self._writer: W | None = None
        self._readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, R] = weakref.WeakKeyDictionary()
        self._guard = threading.Lock()
        self._closed = False

    def writer(self) -> W:
        """The synchronous client. Raises TerminalStoreError after `close`."""
        with self._guard:
            self._check_open()
            if self._writer is None:
                self._writer = self._make_writer()
            return self._writer

    def reader(self) -> R:
        """The asynchronous client of the running loop. Raises TerminalStoreError after `close`."""
        loop = asyncio.get_running_loop()
        with self._guard:
            self._check_open()
            reader = self._readers.get(loop)
            if reader is None:
                reader = self._readers[loop] = self._make_reader()
            return reader

    async def close(self) -> None:
        """Close all of them, each in its own loop; a second call does nothing."""
        with self._guard:
            self._closed = True
            writer, self._writer = self._writer, None
            readers = dict(self._readers)
            self._readers.clear()
        if writer is not None:
            writer.close()
        for loop, reader in readers.items():
            if loop is asyncio.get_running_loop():
                await reader.close()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(reader.close(), loop)

    def _check_open(self) -> None:
        if self._closed:
            raise TerminalStoreError(self._store, self._address, "the store is closed")
