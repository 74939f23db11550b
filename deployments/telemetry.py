"""What one request leaves behind: a log line and numbers. Never the query text, a row or a token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("ray.serve")

MS_BOUNDARIES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]


@dataclass(frozen=True, slots=True)
class Observation:
    """One answered request. `code` is "ok" or the error's code; `answer` the JSON of a successful one."""

    request_id: str
    surface: str
    tool: str
    tenant: str | None
    code: str
    status: int
    ms: float
    answer: Mapping[str, Any] | None = None


Observe = Callable[[Observation], None]


def log_line(seen: Observation) -> None:
    """One `key=value` line on the logger that Serve writes per replica."""
    answer = seen.answer or {}
    log.info(
        "request_id=%s surface=%s tool=%s tenant=%s code=%s status=%d ms=%.1f items=%d tokens=%s degraded=%s",
        seen.request_id,
        seen.surface,
        seen.tool,
        seen.tenant or "-",
        seen.code,
        seen.status,
        seen.ms,
        _items(answer),
        answer.get("tokens", "-"),
        ",".join(f"{one['channel']}:{one['code']}" for one in answer.get("degraded", ())) or "-",
    )


def _items(answer: Mapping[str, Any]) -> int:
    listed = next(
        (value for value in answer.values() if isinstance(value, Sequence) and not isinstance(value, str)), ()
    )
    return len(listed)


class Metrics:
    """recall_* series of an ingress replica. Tags are few and closed: tool, code, channel, outcome."""

    def __init__(self) -> None:
        from ray.serve import metrics

        self._requests = metrics.Counter(
            "recall_requests", description="Requests answered, by tool and outcome.", tag_keys=("tool", "outcome")
        )
        self._ms = metrics.Histogram(
            "recall_request_ms",
            description="Wall time of a request inside the ingress, in milliseconds.",
            boundaries=MS_BOUNDARIES,
            tag_keys=("tool",),
        )
        self._channel_ms = metrics.Histogram(
            "recall_channel_ms",
            description="Wall time of one channel as the engine saw it, in milliseconds.",
            boundaries=MS_BOUNDARIES,
            tag_keys=("channel", "outcome"),
        )
        self._degraded = metrics.Counter(
            "recall_degraded", description="Degradations reported in answers.", tag_keys=("channel", "outcome")
        )
        self._dropped = metrics.Counter(
            "recall_dropped", description="Candidates dropped before packing, by reason.", tag_keys=("outcome",)
        )

    def __call__(self, seen: Observation) -> None:
        log_line(seen)
        self._requests.inc(tags={"tool": seen.tool, "outcome": seen.code})
        self._ms.observe(seen.ms, tags={"tool": seen.tool})
        answer = seen.answer or {}
        for name, report in answer.get("channels", {}).items():
            outcome = report.get("error") or "ok"
            self._channel_ms.observe(report["ms"], tags={"channel": name, "outcome": outcome})
        for one in answer.get("degraded", ()):
            self._degraded.inc(tags={"channel": one["channel"], "outcome": one["code"]})
        for reason, count in answer.get("dropped", {}).items():
            if count:
                self._dropped.inc(count, tags={"outcome": reason})
