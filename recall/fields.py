"""Field types of the registry and the one strict conversion from outside values into them."""

from __future__ import annotations

import datetime as dt
import json
import math
from contextlib import suppress
from typing import Literal

from recall.rows import Json

FieldType = Literal["string", "int", "float", "bool", "date", "datetime", "json", "strings"]
FILTERABLE_TYPES: frozenset[str] = frozenset({"string", "int", "float", "bool", "date", "datetime"})

_PREFIX = {"string": "s", "int": "i", "float": "f", "bool": "b", "date": "d", "datetime": "t"}
_INT64 = 2**63


def filter_column(field: str, kind: FieldType) -> str:
    """Physical column of a filterable field in the shared planes: typed, so two entities may disagree on a type."""
    return f"{_PREFIX[kind]}_{field}"


def canonical_datetime(value: dt.datetime) -> str:
    """UTC, fixed width, so that text order is time order: `2026-01-02T03:04:05.000006Z`. Naive values count as UTC."""
    aware = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    return aware.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def convert(value: object, kind: FieldType, *, from_text: bool = False) -> Json:
    """Return `value` as the JSON-ready form of `kind`, or raise ValueError saying what was expected.

    Strict: `3` is no string and `true` is no int. With `from_text` (CSV, where every value is text) numbers, booleans
    and JSON are parsed from their text form and an empty text is null, but for `string`.
    """
    if value is None:
        return None
    if isinstance(value, float) and math.isnan(value) and kind != "float":
        return None
    if from_text and isinstance(value, str) and kind != "string":
        if value == "":
            return None
        value = _from_text(value, kind)
    return _CONVERTERS[kind](value)


def _from_text(text: str, kind: FieldType) -> object:
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text)
    if kind == "bool":
        lowered = text.strip().lower()
        if lowered not in ("true", "false", "1", "0"):
            raise ValueError(f"expected bool, got {text!r}")
        return lowered in ("true", "1")
    if kind in ("json", "strings"):
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("JSON nested too deeply") from None
    return text


def _string(value: object) -> Json:
    if not isinstance(value, str):
        raise ValueError(f"expected string, got {_shown(value)}")
    return value


def _int(value: object) -> Json:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected int, got {_shown(value)}")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"int out of the 64-bit range: {value}")
    return value


def _float(value: object) -> Json:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected float, got {_shown(value)}")
    if not math.isfinite(value):
        raise ValueError(f"float must be finite, got {value}")
    return float(value)


def _bool(value: object) -> Json:
    if not isinstance(value, bool):
        raise ValueError(f"expected bool, got {_shown(value)}")
    return value


def _date(value: object) -> Json:
    if isinstance(value, dt.datetime):
        raise ValueError(f"expected date, got {_shown(value)}")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, str):
        with suppress(ValueError):
            return dt.date.fromisoformat(value).isoformat()
    raise ValueError(f"expected date (YYYY-MM-DD), got {_shown(value)}")


def _datetime(value: object) -> Json:
    parsed = value
    if isinstance(value, str):
        with suppress(ValueError):
            parsed = dt.datetime.fromisoformat(value)
    if isinstance(parsed, dt.datetime):
        # A time that leaves the years 1 to 9999 on its way to UTC has no canonical form.
        with suppress(OverflowError):
            return canonical_datetime(parsed)
    raise ValueError(f"expected datetime (ISO 8601), got {_shown(value)}")


def _json(value: object) -> Json:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, got {_shown(value)}: {error}") from None
    parsed: Json = json.loads(text)
    return parsed


def _strings(value: object) -> Json:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"expected a list of strings, got {_shown(value)}")
    return list(value)


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"


_CONVERTERS = {
    "string": _string,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "date": _date,
    "datetime": _datetime,
    "json": _json,
    "strings": _strings,
}
