"""The clients of a store: one for writing, one for each loop that reads, none after the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from recall.errors import TerminalStoreError
from recall.planes.clients import Clients


class Writer:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Reader:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed_in: list[asyncio.AbstractEventLoop] = []
        self.closed = threading.Event()

    async def close(self) -> None:
        self.closed_in.append(asyncio.get_running_loop())
        self.closed.set()


def test_every_loop_has_a_reader_of_its_own_which_ends_in_that_loop() -> None:
    clients = Clients(Writer, Reader, "store", "here")

    async def read() -> Reader:
        return clients.reader()

    with asyncio.Runner() as mine:
        others = asyncio.new_event_loop()
        elsewhere = threading.Thread(target=others.run_forever)
        elsewhere.start()
        other = asyncio.run_coroutine_threadsafe(read(), others).result(10)
        own, writer = mine.run(read()), clients.writer()
        assert (mine.run(read()), clients.writer()) == (own, writer)
        assert own is not other
        mine.run(clients.close())
        mine.run(clients.close())
        assert other.closed.wait(10)
        others.call_soon_threadsafe(others.stop)
        elsewhere.join()
        others.close()
        assert ([own.loop], [other.loop], writer.closed) == (own.closed_in, other.closed_in, 1)
        with pytest.raises(TerminalStoreError, match="the store is closed"):
            mine.run(read())
    with pytest.raises(TerminalStoreError, match="the store is closed"):
        clients.writer()
