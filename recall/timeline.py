"""Dated contexts: a set of memories as a timeline, with its latest date as "now". Pure.

Models answer temporal questions better from dated lines in time order than from ranked facts (recall_fused).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass

from recall.rows import Json

_COMPACT = re.compile(r"\d{8}")
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Timeline:
    """`dated_context`: `- [YYYY-MM-DD] content` a line, oldest first, undated last; `now`: the latest date, if any."""

    dated_context: str
    now: str | None
    undated: int


def parse_date(value: Json) -> dt.date | None:
    """The date that `value` means: an int or text `YYYYMMDD`, or ISO text; None for anything else."""
    if isinstance(value, bool):
        return None
    text = str(value) if isinstance(value, int) else value
    if not isinstance(text, str):
        return None
    try:
        if _COMPACT.fullmatch(text):
            return dt.date(int(text[:4]), int(text[4:6]), int(text[6:]))
        if _ISO.fullmatch(text):
            return dt.date.fromisoformat(text)
    except ValueError:
        return None
    return None


def timeline(memories: Sequence[tuple[str, Json]]) -> Timeline:
    """The timeline of (content, raw date) pairs given in relevance order, which also breaks ties of dates."""
    read = [(parse_date(raw), content) for content, raw in memories]
    dated = sorted(((date, content) for date, content in read if date is not None), key=lambda pair: pair[0])
    undated = [content for date, content in read if date is None]
    lines = [f"- [{date.isoformat()}] {content}" for date, content in dated]
    lines += [f"- {content}" for content in undated]
    return Timeline("\n".join(lines), dated[-1][0].isoformat() if dated else None, len(undated))
