"""From the bytes of a request to JSON, or to a problem that says what is wrong with them. Knows no tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from deployments.problems import RequestProblem

# Deeper than any honest filter; every later recursion over a body is bounded by it.
MAX_NESTING = 32
_JSON_TYPE = re.compile(r"application/json\s*(;\s*charset=\"?utf-8\"?\s*)?", re.IGNORECASE)


async def read_json(request: Request) -> object:
    """The JSON body of `request`. Raises RequestProblem: 415, 413 (from `limited`) or 400."""
    if not _JSON_TYPE.fullmatch(request.headers.get("content-type", "").strip()):
        raise RequestProblem(415, "unsupported_media_type", "send the body as `Content-Type: application/json`")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestProblem(415, "unsupported_media_type", "send the body without Content-Encoding")
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise RequestProblem(400, "invalid_json", "the connection closed before the body ended") from None
    return parse_json(raw)


def parse_json(raw: bytes) -> object:
    """`raw` as JSON of at most MAX_NESTING levels, without NaN and Infinity."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise RequestProblem(400, "invalid_json", "the body is not UTF-8") from None
    except RecursionError:
        raise RequestProblem(400, "invalid_json", f"nested deeper than {MAX_NESTING} levels") from None
    except ValueError as error:
        raise RequestProblem(400, "invalid_json", f"the body is not JSON: {error}") from None
    check_nesting(value)
    return value


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def check_nesting(value: object) -> None:
    """Raise RequestProblem when `value` has more than MAX_NESTING levels of lists and objects."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for one in level for inner in _members(one) if isinstance(inner, (dict, list))]
        if not level:
            return
    raise RequestProblem(400, "invalid_json", f"nested deeper than {MAX_NESTING} levels")


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def limited(receive: Receive, max_bytes: int) -> Receive:
    """`receive` that raises a 413 once more than `max_bytes` of body came through."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > max_bytes:
            raise RequestProblem(413, "body_too_large", f"the body has more than {max_bytes} bytes")
        return message

    return counted
