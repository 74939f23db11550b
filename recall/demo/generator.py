"""Rows of the demo tenant from a seed: the fixed stories, and thousands of plausible rows around them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from recall.demo.prose import Prose
from recall.rows import Json

DEFAULT_SEED = 7
# Rows at scale 1, about 5,000 with the stories.
SIZES = {"site": 30, "person": 120, "asset": 700, "work_order": 2300, "note": 1850}
_LAST_DAY = dt.date(2024, 9, 30)

Records = dict[str, list[dict[str, Json]]]


def generate(seed: int = DEFAULT_SEED, scale: float = 1.0) -> Records:
    """All rows by entity, each with its `id`; the same for the same seed and scale.

    `scale` multiplies the number of generated rows; the stories that `QUESTIONS` are about are always there.
    """
    vocabulary = _read("vocabulary.yaml")
    stories = _read("stories.yaml")
    company = _Company(random.Random(seed), vocabulary, scale)
    return {entity: [*stories[entity], *rows] for entity, rows in company.records.items()}


def _read(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


class _Company:
    """One generated company. Entities are made in the order in which they refer to each other."""

    def __init__(self, rng: random.Random, vocabulary: Mapping[str, Any], scale: float) -> None:
        self._rng = rng
        self._words = vocabulary
        self._sizes = {entity: max(4, round(size * scale)) for entity, size in SIZES.items()}
        self._machine: dict[str, Mapping[str, Any]] = {}
        self._names = self._people_names()
        self._prose = Prose(rng, vocabulary, self._names)

    @cached_property
    def records(self) -> Records:
        sites = self._sites()
        people = self._people(sites)
        for site in sites:
            site["manager"] = self._rng.choice(people)["id"]
        assets = self._assets(sites, people)
        orders = self._orders(assets, people)
        notes = self._notes(assets, orders, people)
        return {"site": sites, "person": people, "asset": assets, "work_order": orders, "note": notes}

    def _people_names(self) -> list[str]:
        names = [f"{first} {last}" for first in self._words["first_names"] for last in self._words["last_names"]]
        return self._rng.sample(names, min(len(names), self._sizes["person"]))

    def _ids(self, entity: str, prefix: str) -> list[str]:
        return [f"{prefix}-{number:05d}" for number in range(1, self._sizes[entity] + 1)]

    def _sites(self) -> list[dict[str, Json]]:
        towns: Sequence[str] = self._words["towns"]
        kinds: Sequence[Mapping[str, Any]] = self._words["site_kinds"]
        rows: list[dict[str, Json]] = []
        for number, row_id in enumerate(self._ids("site", "site")):
            # Towns in turn, then kinds in turn: no two sites share a name until both are used up.
            town = towns[number % len(towns)]
            kind = kinds[(number + number // len(towns)) % len(kinds)]
            rows.append(
                {
                    "id": row_id,
                    "name": f"{town} {kind['kind']}" + (f" {number // 150 + 1}" if number >= 150 else ""),
                    "kind": kind["kind"],
                    "town": town,
                    "opened": self._day(dt.date(1950, 1, 1), dt.date(2015, 12, 31)),
                    "manager": None,
                    "text": self._prose.site(kind),
                }
            )
        return rows

    def _people(self, sites: Sequence[dict[str, Json]]) -> list[dict[str, Json]]:
        rows: list[dict[str, Json]] = []
        for number, row_id in enumerate(self._ids("person", "person")):
            name = self._names[number % len(self._names)]
            role = self._rng.choice(self._words["roles"])
            rows.append(
                {
                    "id": row_id,
                    "name": name,
                    "role": role["role"],
                    "team": self._rng.choice(("north", "east", "west", "coast", "central")),
                    "site": self._rng.choice(sites)["id"],
                    "phone": f"555 {2000 + number:04d}",
                    "text": self._prose.person(name, role),
                }
            )
        return rows

    def _assets(self, sites: Sequence[dict[str, Json]], people: Sequence[dict[str, Json]]) -> list[dict[str, Json]]:
        rows: list[dict[str, Json]] = []
        for number, row_id in enumerate(self._ids("asset", "asset")):
            site, machine = self._rng.choice(sites), self._rng.choice(self._words["machines"])
            model = self._rng.choice(machine["models"])
            self._machine[row_id] = machine
            rows.append(
                {
                    "id": row_id,
                    "name": f"{site['town']} {machine['kind']} {number % 90 + 10}",
                    "kind": machine["kind"],
                    "model": model,
                    "serial": f"{self._prose.letters(2)}{number % 10}-{number:04d}-{self._rng.randint(100, 999)}",
                    "site": site["id"],
                    "responsible": self._rng.choice(people)["id"],
                    "status": self._rng.choices(("running", "standby", "out_of_service"), (80, 15, 5))[0],
                    "criticality": self._rng.choices((1, 2, 3), (15, 35, 50))[0],
                    "cost": round(self._rng.lognormvariate(9.2, 0.8), 2),
                    "installed": self._day(dt.date(1985, 1, 1), dt.date(2022, 12, 31)),
                    "text": self._prose.asset(model, machine),
                }
            )
        return rows

    def _orders(self, assets: Sequence[dict[str, Json]], people: Sequence[dict[str, Json]]) -> list[dict[str, Json]]:
        rows: list[dict[str, Json]] = []
        for row_id in self._ids("work_order", "wo"):
            asset = self._rng.choice(assets)
            status = self._rng.choices(("closed", "open", "waiting", "cancelled"), (78, 12, 7, 3))[0]
            opened = dt.date.fromisoformat(self._day(dt.date(2019, 1, 1), _LAST_DAY))
            closed = min(_LAST_DAY, opened + dt.timedelta(days=self._rng.randint(0, 45)))
            job = self._prose.job(self._machine[str(asset["id"])], done=status == "closed")
            rows.append(
                {
                    "id": row_id,
                    "title": job.title,
                    "asset": asset["id"],
                    "site": asset["site"],
                    "assignee": self._rng.choice(people)["id"],
                    "status": status,
                    "priority": self._rng.choices((1, 2, 3, 4), (8, 27, 45, 20))[0],
                    "opened": opened.isoformat(),
                    "closed": closed.isoformat() if status in ("closed", "cancelled") else None,
                    "cost": round(self._rng.lognormvariate(5.6, 1.1), 2) if status == "closed" else 0.0,
                    "hours": round(self._rng.uniform(0.5, 24), 1) if status == "closed" else 0.0,
                    "parts": list(job.parts),
                    "text": job.text,
                }
            )
        return rows

    def _notes(
        self,
        assets: Sequence[dict[str, Json]],
        orders: Sequence[dict[str, Json]],
        people: Sequence[dict[str, Json]],
    ) -> list[dict[str, Json]]:
        by_id = {str(asset["id"]): asset for asset in assets}
        rows: list[dict[str, Json]] = []
        for row_id in self._ids("note", "note"):
            order = self._rng.choice(orders) if self._rng.random() < 0.6 else None
            asset = by_id[str(order["asset"])] if order else self._rng.choice(assets)
            clock = f"{self._rng.randrange(24):02d}:{self._rng.randrange(60):02d}:00Z"
            rows.append(
                {
                    "id": row_id,
                    "asset": asset["id"],
                    "work_order": order["id"] if order else None,
                    "author": self._rng.choice(people)["id"],
                    "site": asset["site"],
                    "written": f"{self._day(dt.date(2019, 1, 1), _LAST_DAY)}T{clock}",
                    "text": self._prose.note(str(asset["model"]), self._machine[str(asset["id"])]),
                }
            )
        return rows

    def _day(self, first: dt.date, last: dt.date) -> str:
        return (first + dt.timedelta(days=self._rng.randint(0, (last - first).days))).isoformat()
