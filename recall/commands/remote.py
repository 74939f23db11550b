"""A tool called on a Recall server over HTTP. Knows the wire form of errors; never a store."""

from __future__ import annotations

from typing import Any, cast

from recall.errors import RecallError


class Refused(RecallError):
    """A server's error, or no answer from it at all. `reason` is the server's code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])


def call_server(url: str, tool: str, body: object, *, token: str | None, timeout_s: float) -> dict[str, Any]:
    """The answer of `tool` at the server `url`. Raises Refused with the server's own code and message."""
    import httpx

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    target = f"{url.rstrip('/')}/v1/{tool}"
    try:
        response = httpx.post(target, json=body, headers=headers, timeout=timeout_s)
    except httpx.TimeoutException:
        raise Refused("server_timeout", f"{target}: no answer within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Refused("server_unreachable", f"{target}: {error}; is `recall serve` running there?") from None
    try:
        answer = response.json()
    except ValueError:
        raise Refused(
            "server_error", f"{target}: HTTP {response.status_code} and no JSON: not a Recall server?"
        ) from None
    if response.is_success and isinstance(answer, dict):
        return cast(dict[str, Any], answer)
    problem = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(problem, dict):
        raise Refused("server_error", f"{target}: HTTP {response.status_code}: not a Recall server?")
    raise Refused(str(problem.get("code")), str(problem.get("message")))
