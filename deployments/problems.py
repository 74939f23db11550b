"""The one shape of an error over HTTP: {"error": {"code", "message", "request_id"}}. Decides status and headers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from recall.errors import (
    AllChannelsFailed,
    Busy,
    ChannelError,
    RecallError,
    TransientStoreError,
    Unauthorized,
)
from recall.results import DegradedCode

RETRY_AFTER_S = 1
_TIMEOUTS = frozenset({DegradedCode.CHANNEL_TIMEOUT, DegradedCode.EMBED_TIMEOUT})


class RequestProblem(RecallError):
    """What is wrong with a request before any tool sees it; carries its own status and code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.reason = code
        self.text = message

    def __str__(self) -> str:
        return self.text


class Json(Response):
    """Compact UTF-8 JSON. NaN is refused; a lone surrogate that a caller sent comes back as `?`, not as a failure."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8", "replace")


def code_of(error: RecallError) -> str:
    """The stable code of `error`: for a failed channel its `degraded` code."""
    if isinstance(error, RequestProblem):
        return error.reason
    return str(error.reason) if isinstance(error, ChannelError) else error.code


def status_of(error: RecallError) -> int:
    if isinstance(error, RequestProblem):
        return error.status
    if isinstance(error, ChannelError) and error.reason in _TIMEOUTS:
        return 504
    return error.http_status


def headers_of(error: RecallError) -> dict[str, str]:
    """What the status obliges to: how to authenticate, when to come back."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="recall"'}
    passing = isinstance(error, (AllChannelsFailed, Busy, ChannelError, TransientStoreError))
    if status_of(error) == 429 or (passing and status_of(error) in (409, 503)):
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}


def error_body(code: str, message: str, request_id: str) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "request_id": request_id}}


def problem(error: RecallError, request_id: str) -> Json:
    """`error` as a response."""
    body = error_body(code_of(error), error.message, request_id)
    return Json(body, status_of(error), headers_of(error))


def plain_problem(
    status: int, code: str, message: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Json:
    """A problem that is no RecallError: no such path, wrong method."""
    return Json(error_body(code, message, request_id), status, headers)
