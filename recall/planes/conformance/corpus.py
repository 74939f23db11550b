"""A corpus with every kind of filter value, and the filters that are asked of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta

from recall.fields import canonical_datetime
from recall.planes.conformance.data import INJECTION, Record
from recall.registry import Registry
from recall.rows import Json, Ref
from recall.where import Where, parse_where

TITLES = (
    "Pump 7",
    "pump seven",
    "50%_off",
    "50% off",
    "C:\\repo\\file",
    "trailing\\",
    'A "test"',
    "it's",
    "line1\nline2",
    "Ärger",
    "ärger im Büro",
    "认证系统",
    INJECTION,
    "a*b?c[d]^e$.f|g(h)",
    "",
    " ",
)

# What is asked of item and place together; the selectivities reach from 0.05 % (one row) to all rows.
FILTERS: tuple[Mapping[str, object], ...] = (
    {"status": "open"},
    {"status": "rare"},
    {"status": {"ne": "open"}},
    {"status": {"in": ["rare", "waiting", "no such"]}},
    {"status": {"notin": ["open", "closed"]}},
    {"status": {"isnull": True}},
    {"status": {"isnull": False}},
    {"status": {"gt": "open"}},
    {"amount": 7},
    {"amount": {"in": list(range(1000))}},
    {"amount": {"gte": 10, "lt": 12}},
    {"amount": {"ne": 7}},
    {"amount": 2**53 + 1},
    {"amount": -(2**63)},
    {"cost": {"gt": 990}},
    {"cost": {"lte": 5}},
    {"cost": {"isnull": True}},
    {"cost": {"notin": [5]}},
    {"cost": 5},
    {"active": True},
    {"active": False},
    {"active": {"ne": True}},
    {"active": {"in": [True, False]}},
    {"active": {"isnull": True}},
    {"due": "2026-01-10"},
    {"due": {"gte": "2026-01-01", "lte": "2026-01-03"}},
    {"due": {"in": ["2025-06-01", "2025-06-02"]}},
    {"due": {"isnull": True}},
    {"seen": {"gte": "2026-01-02T00:00:00+02:00", "lt": "2026-01-02T06:30:00Z"}},
    {"seen": "2026-01-01T00:00:00"},
    *({"title": title} for title in TITLES),
    *(
        {"title": {"like": pattern}}
        for pattern in ("pump%", "%pump%", "50\\%\\_off", "50%", "____ _", "%\\\\", "", "%")
    ),
    *({"title": {"like": pattern}} for pattern in ("line1_line2", "%'%", "a*b?c[d]^e$.f|g(h)", "%|%", "证%", "认证__")),
    *({"title": {"ilike": pattern}} for pattern in ("PUMP%", "ärger%", '%TEST"', "c:\\\\REPO%")),
    {"title": {"in": list(TITLES)}},
    {"or": [{"status": "rare"}, {"amount": 7, "active": True}, {"or": [{"due": "2026-01-10"}, {"cost": {"lt": 2}}]}]},
    {"status": "open", "or": [{"amount": {"lt": 3}}, {"title": {"isnull": True}}]},
    {"status": "open", "active": True, "amount": {"lt": 100}, "cost": {"gt": 500}},
    {"status": "no such value"},
    {"status": INJECTION},
    {"status": '") or true or ("'},
    {"status": "\\"},
    {"status": "open\\"},
    {"status": "open' or '1'='1"},
)


def parsed(raw: Mapping[str, object], registry: Registry, entities: Sequence[str] = ("item", "place")) -> Where | None:
    return parse_where(raw, {name: registry.entity(name).filter_fields for name in entities})


def corpus(size: int = 2000) -> list[Record]:
    """`size` rows, every tenth a place, whose values cover `FILTERS`; the same on every call."""
    rng = random.Random(20260117)
    return [_place(i, rng) if i % 10 == 9 else _item(i, rng) for i in range(size)]


def _item(i: int, rng: random.Random) -> Record:
    status = rng.choices(["open", "closed", "waiting", "rare", None], [50, 30, 14.5, 0.5, 5])[0]
    extreme = {0: 2**53 + 1, 1: 2**53, 2: -(2**63), 3: 2**63 - 1}
    day = date(2025, 1, 1) + timedelta(days=rng.randrange(400))
    second = datetime(2026, 1, 1) + timedelta(seconds=7 * i, microseconds=i)  # noqa: DTZ001 (naive counts as UTC)
    values: dict[str, Json] = {
        "title": TITLES[i // 50] if i % 50 == 0 and i // 50 < len(TITLES) else rng.choice([f"Title {i}", "Pump", None]),
        "status": status,
        "cost": None if rng.random() < 0.1 else float(rng.randrange(1000)) if rng.random() < 0.5 else rng.random() * 9,
        "amount": extreme.get(i, rng.randrange(200)),
        "active": rng.choice([True, False, False, None]),
        "due": None if rng.random() < 0.1 else day.isoformat(),
        "seen": canonical_datetime(second) if i % 3 else None,
    }
    return Record(Ref("item", f"i{i:05d}"), values=values, scope=f"s{i % 4}")


def _place(i: int, rng: random.Random) -> Record:
    values: dict[str, Json] = {"status": rng.choice(["open", "closed", None]), "cost": rng.choice([None, 1, 5, 995])}
    return Record(Ref("place", f"p{i:05d}"), values=values)


def random_filters(records: Sequence[Record], count: int) -> Iterator[Mapping[str, object]]:
    """Filters over `item` alone whose operands come from the records themselves; nested at most twice."""
    rng = random.Random(42)
    items = [record for record in records if record.ref.entity == "item"]
    for _ in range(count):
        yield _random_object(rng, items, depth=2)


def _random_object(rng: random.Random, items: Sequence[Record], depth: int) -> dict[str, object]:
    fields = rng.sample(["title", "status", "cost", "amount", "active", "due", "seen"], rng.choice([1, 1, 2]))
    found: dict[str, object] = {name: _random_test(rng, items, name) for name in fields}
    if depth and rng.random() < 0.5:
        found["or"] = [_random_object(rng, items, depth - 1) for _ in range(rng.choice([2, 3]))]
    return found


def _random_test(rng: random.Random, items: Sequence[Record], name: str) -> object:
    known = [value for record in items if (value := record.values[name]) is not None]
    value = rng.choice(known)
    ordered = [] if name == "active" else ["gt", "gte", "lt", "lte"]
    textual = ["like", "ilike"] if name in ("title", "status") else []
    op = rng.choice(["eq", "ne", "in", "notin", "isnull", *ordered, *textual])
    if op == "isnull":
        return {op: rng.random() < 0.5}
    if op in ("in", "notin"):
        return {op: [value, *rng.choices(known, k=rng.choice([1, 5, 40]))]}
    if op in textual:
        text = str(value).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return {op: rng.choice([text, text[: len(str(value)) // 2].rstrip("\\") + "%", "%" + text, "_" + text[1:]])}
    return {op: value}
