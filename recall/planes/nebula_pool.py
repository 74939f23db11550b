"""The pool of sessions of one store: at most `pool_size`, lost ones replaced once, passing trouble waited out.

The client library's own pools fail instead of waiting when every session is in use, and cannot follow a deadline.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from nebula3.fbthrift.Thrift import TException

from recall.errors import TransientStoreError
from recall.planes.nebula_session import STORE, Deadline, Lost, Refused, Result, Row, Session
from recall.planes.nebula_text import Scalar
from recall.settings import NebulaSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """What a piece of work gets to talk to the server with: one session at a time, a space, a deadline."""

    sessions: Sessions
    space: str | None
    deadline: Deadline

    def execute(self, text: str, params: Mapping[str, Scalar | list[str]] | None = None) -> list[Row]:
        """Rows of `text` run in the space. Raises Refused for an error that is none of passing trouble, StoreError."""
        return self.sessions.execute(self, text, params or {}).rows

    def execute_named(self, text: str, params: Mapping[str, Scalar | list[str]]) -> Result:
        """`execute`, with the names of the columns."""
        return self.sessions.execute(self, text, params)


class Sessions:
    """At most `pool_size` sessions with whichever of the addresses answer."""

    def __init__(self, settings: NebulaSettings) -> None:
        self._settings = settings
        self._idle: list[Session] = []
        self._free = threading.BoundedSemaphore(settings.pool_size)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._turn = itertools.count()
        self.address = ",".join(settings.addresses)

    def execute(self, work: Work, text: str, params: Mapping[str, Scalar | list[str]]) -> Result:
        fresh = False
        tries = 0
        while True:
            try:
                return self._once(work, text, params, fresh=fresh)
            except Lost as lost:
                if work.deadline.left <= 0:
                    raise self._transient(f"no answer before the deadline ({lost}); try again") from None
                if fresh:
                    raise self._transient(
                        f"the connection was lost twice: {lost}; check that graphd is running"
                    ) from None
                fresh = True
            except Refused as refused:
                if not refused.passing or tries >= self._settings.retries:
                    raise
                pause = 0.05 * 2**tries
                if pause >= work.deadline.left or self._closed.wait(pause):
                    raise
                tries += 1

    def close(self) -> None:
        """Sign out what is idle. A session in use is closed when its work ends."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _once(self, work: Work, text: str, params: Mapping[str, Scalar | list[str]], *, fresh: bool) -> Result:
        if not self._free.acquire(timeout=max(0.0, work.deadline.left)):
            raise self._transient(f"all {self._settings.pool_size} sessions stayed busy until the deadline")
        session: Session | None = None
        try:
            if work.deadline.left <= 0:
                raise self._transient("the deadline passed before the statement was sent; try again")
            session = self._take(work.space, fresh=fresh) or self._open(work.deadline)
            if work.space is not None and session.space != work.space:
                session.execute(f"USE `{work.space}`", {}, work.deadline)
                session.space = work.space
            result = session.execute(text, params, work.deadline)
        except Refused:
            self._give_back(session)
            raise
        except Lost:
            self._forget(session)
            raise
        else:
            self._give_back(session)
            return result
        finally:
            self._free.release()

    def _take(self, space: str | None, *, fresh: bool) -> Session | None:
        """The idle session used last, preferably one that is in the space already."""
        if fresh:
            return None
        with self._lock:
            for position in range(len(self._idle) - 1, -1, -1):
                if self._idle[position].space == space:
                    return self._idle.pop(position)
            return self._idle.pop() if self._idle else None

    def _open(self, deadline: Deadline) -> Session:
        count = len(self._settings.addresses)
        first = next(self._turn)
        trouble: list[str] = []
        for offset in range(count):
            address = self._settings.addresses[(first + offset) % count]
            if deadline.left <= 0:
                break
            try:
                return Session(address, self._settings, deadline)
            except (TException, OSError, EOFError) as error:
                trouble.append(f"{address}: {error}")
        raise self._transient(
            f"no server answers ({'; '.join(trouble) or 'no time left'}): check that graphd is running"
        )

    def _give_back(self, session: Session | None) -> None:
        if session is None:
            return
        with self._lock:
            if not self._closed.is_set():
                self._idle.append(session)
                return
        session.close()

    def _forget(self, session: Session | None) -> None:
        """Drop a broken session, and the idle ones of its address: they most likely died with it."""
        if session is None:
            return
        session.drop()
        with self._lock:
            dead = [one for one in self._idle if one.address == session.address]
            self._idle = [one for one in self._idle if one.address != session.address]
        for one in dead:
            one.drop()

    def _transient(self, detail: str) -> TransientStoreError:
        return TransientStoreError(STORE, self.address, detail)


def until_spread(attempt: Callable[[], T], wait_s: float, pause_s: float, address: str) -> T:
    """Repeat `attempt` while the server answers that it does not know a new definition yet."""
    deadline = Deadline(wait_s)
    while True:
        try:
            return attempt()
        except Refused as refused:
            if not (refused.spreading or refused.passing):
                raise
            if deadline.left < pause_s:
                detail = f"{refused.text}: the definition did not spread within {wait_s:.0f} s; raise schema_wait_s"
                raise TransientStoreError(STORE, address, detail) from None
        time.sleep(pause_s)
