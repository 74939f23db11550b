"""An OpenAI-compatible endpoint: JSON in, JSON out, at a bounded rate, repeated while that may help. Knows no task."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from recall.errors import ConfigError
from recall.settings import EndpointSettings

FIRST_PAUSE_S = 0.5
# The request itself is wrong for these; every other status may be about one row, or about this moment.
_MISCONFIGURED = {401: "the key is refused", 403: "the key may not use this model", 404: "no such path or model"}
_PASSING = {408, 409, 425, 429}


class RequestFailed(Exception):
    """One request got no usable answer, after all repetitions. The message holds no key and no text of a row."""


class Endpoint:
    """`post` from any number of threads. Closed by `close`, or when it is no longer used."""

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError when the key's variable is not set."""
        key = settings.key()
        self._settings = settings
        self._pause = pause
        self._pace = _Pace(settings.requests_per_minute, pause, clock)
        self._client = httpx.Client(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=settings.timeout_s,
            limits=httpx.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency),
        )
        # Summarizers live in worker processes that nobody tells to close them.
        self._finalizer = weakref.finalize(self, self._client.close)

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """The JSON answer. Raises RequestFailed, or ConfigError when no request to this endpoint can succeed."""
        url = f"{self._settings.url.rstrip('/')}/{path}"
        for attempt in range(self._settings.retries + 1):
            last = attempt == self._settings.retries
            self._pace.wait()
            try:
                response = self._client.post(url, json=body)
            except httpx.TransportError as error:
                reason, wait = f"{type(error).__name__}: {error}", None
            else:
                if response.is_success:
                    return _parsed(response)
                reason, wait = self._refused(response)
            if last:
                raise RequestFailed(f"{url}: {reason} (after {attempt + 1} attempts)")
            self._pause(self._backoff(attempt, wait))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        self._finalizer()

    def _refused(self, response: httpx.Response) -> tuple[str, float | None]:
        """Why, and for how long to wait where the server says so. Raises where repeating cannot help."""
        status, url = response.status_code, str(response.url)
        if status in _MISCONFIGURED:
            raise ConfigError(f"{url}: {status}, {_MISCONFIGURED[status]}; model {self._settings.model!r}")
        reason = f"{status} {response.reason_phrase}"
        if status not in _PASSING and status < 500:
            raise RequestFailed(f"{url}: {reason}")
        return reason, _retry_after(response.headers.get("retry-after"))

    def _backoff(self, attempt: int, wait: float | None) -> float:
        longest = self._settings.longest_pause_s
        # Jitter, so that requests that failed together do not come back together.
        own: float = min(longest, FIRST_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0)
        return own if wait is None else min(longest, max(wait, own))


class _Pace:
    """Spreads requests evenly: each takes the next free moment."""

    def __init__(self, per_minute: float | None, pause: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._gap = 60 / per_minute if per_minute else 0.0
        self._pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock()

    def wait(self) -> None:
        if not self._gap:
            return
        with self._lock:
            now = self._clock()
            mine = max(now, self._next)
            self._next = mine + self._gap
        if mine > now:
            self._pause(mine - now)


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a number or an HTTP date; None when the server did not say."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _parsed(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise RequestFailed(f"{response.url}: {response.status_code} without JSON") from None
