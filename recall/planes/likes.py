"""LIKE patterns taken apart, for stores that can only test for a prefix, an infix or equality. Pure text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from recall.where import Condition, like_pattern

_MAX_CODE = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class LikeShape:
    """What a case-sensitive pattern comes down to. `other`: only a regular expression tells."""

    kind: Literal["anything", "equal", "prefix", "infix", "other"]
    text: str = ""


def like_shape(pattern: str) -> LikeShape:
    """The simplest test that matches exactly what `pattern` (`%`, `_`, `\\` escapes) matches."""
    literal, runs = _literal_runs(pattern)
    if literal is None:
        return LikeShape("other")
    if not runs:
        return LikeShape("equal", literal)
    starts, ends = runs[0] == 0, runs[-1] == len(literal)
    if not literal:
        return LikeShape("anything")
    if all(place in (0, len(literal)) for place in runs):
        if starts and ends:
            return LikeShape("infix", literal)
        if ends:
            return LikeShape("prefix", literal)
    return LikeShape("other")


def _literal_runs(pattern: str) -> tuple[str | None, list[int]]:
    """The literal text and where in it a `%` stands; no text when the pattern holds a `_`."""
    literal: list[str] = []
    runs: list[int] = []
    chars = iter(pattern)
    for char in chars:
        if char == "_":
            return None, []
        if char == "%":
            runs.append(len(literal))
        else:
            literal.append(next(chars, "\\") if char == "\\" else char)
    return "".join(literal), runs


def after_prefix(prefix: str) -> str | None:
    """The least text above every text that starts with `prefix`, in code-point order; None when there is none."""
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= _MAX_CODE:
            return prefix[: length - 1] + chr(code)
    return None


def matching_values(condition: Condition, values: Iterable[object]) -> list[str]:
    """Those of `values` that the `like` or `ilike` of `condition` matches, as `recall.where.matches` decides."""
    pattern = like_pattern(str(condition.value), ignore_case=condition.op == "ilike")
    return [value for value in values if isinstance(value, str) and pattern.fullmatch(value)]
