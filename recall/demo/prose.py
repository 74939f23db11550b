"""Sentences of the demo tenant: templates of `vocabulary.yaml` filled from one random source."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """What a work order says; `parts` are the part numbers that its text names."""

    title: str
    text: str
    parts: tuple[str, ...]


class Prose:
    """Writes the texts of one company. Numbers and names differ from call to call, so few texts are ever equal."""

    def __init__(self, rng: random.Random, vocabulary: Mapping[str, Any], names: Sequence[str]) -> None:
        self._rng = rng
        self._words = vocabulary
        self._names = names
        self._fillers: dict[str, Callable[[], str]] = {
            **self._choices(),
            **self._numbers(),
            "name": lambda: rng.choice(names),
            "other": lambda: rng.choice(names),
            "error": lambda: f"E-{rng.randint(1000, 5999)}",
            "panel": lambda: f"{rng.choice('ABCD')}{rng.randint(1, 24)}",
            "permit": lambda: f"PW-{rng.randint(10_000, 49_999)}",
            "time": lambda: f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
        }

    def _choices(self) -> dict[str, Callable[[], str]]:
        """Fillers that are one word of a list."""
        lists = {"who": "who", "when": "when", "worse": "worse", "weather": "weather", "season": "seasons"}
        lists |= {"day": "weekdays", "days": "days", "language": "languages", "town": "towns", "nth": "ordinals"}
        return {filler: partial(self._pick, source) for filler, source in lists.items()}

    def _numbers(self) -> dict[str, Callable[[], str]]:
        """Fillers that are a number from a range that suits what is measured."""
        whole = {"thousand": (4, 90), "number": (12, 260), "digit": (1, 9), "year": (1968, 2021), "hours": (2, 48)}
        whole |= {"percent": (28, 92), "temp": (31, 96), "amps": (18, 140), "minutes": (4, 95), "years": (3, 9)}
        whole |= {"rpm": (1380, 1490), "decibel": (48, 71)}
        tenths = {"level": (8, 55), "vib": (21, 118), "align": (1, 19), "bar": (12, 88)}
        drawn: dict[str, Callable[[], str]] = {name: partial(self._whole, *span) for name, span in whole.items()}
        return drawn | {name: partial(self._tenths, *span) for name, span in tenths.items()}

    def _whole(self, low: int, high: int) -> str:
        return str(self._rng.randint(low, high))

    def _tenths(self, low: int, high: int) -> str:
        return f"{self._rng.randint(low, high) / 10:.1f}"

    def letters(self, count: int) -> str:
        """Capital letters of serial numbers, for which `T` and `Q` are never drawn."""
        return "".join(self._rng.choices("ABCDEFGHJKLMNPRSUVWXYZ", k=count))

    def site(self, kind: Mapping[str, Any]) -> str:
        """What a site does, how to get in, what is around it."""
        about = self._fill(self._rng.choice(kind["about"]))
        return self._join(f"It {about}.", *self._some("access", 2), *self._some("surroundings", 2))

    def person(self, name: str, role: Mapping[str, Any]) -> str:
        """Role, two skills and two habits of a person."""
        skills = " and ".join(self._rng.sample(role["skills"], 2))
        return self._join(f"{name}, {role['role']}: {skills}.", *self._some("person_notes", 2))

    def asset(self, model: str, machine: Mapping[str, Any]) -> str:
        """What a machine does, and three facts about it."""
        task = self._fill(self._rng.choice(machine["role"]))
        return self._join(f"{model}; {task}.", *self._some("asset_notes", 3))

    def job(self, machine: Mapping[str, Any], *, done: bool) -> Job:
        """Report, finding, repair and closing of one fault of the machine; only the report and what is awaited else."""
        fault = self._rng.choice(machine["faults"])
        number = self._part_number(fault)
        known = self._known(machine, fault, number)
        symptom = self._fill(self._rng.choice(fault["symptoms"]), known)
        known |= {"symptom": symptom}
        pools = ("reports", "findings", "fixes", "closings") if done else ("reports", "open_endings")
        text = self._join(*(self._fill(self._pick(pool), known) for pool in pools))
        title = self._capital(
            self._rng.choice((symptom, f"{fault['part']}: {symptom}", f"{machine['kind']}, {symptom}"))
        )
        return Job(title, text, (number,) if number in text else ())

    def note(self, model: str, machine: Mapping[str, Any]) -> str:
        """A remark about a machine, of one or two sentences."""
        fault = self._rng.choice(machine["faults"])
        known = self._known(machine, fault, self._part_number(fault)) | {"model": model}
        known["symptom"] = self._fill(self._rng.choice(fault["symptoms"]), known)
        return self._join(self._fill(self._pick("notes"), known), self._fill(self._pick("note_tails"), known))

    def _known(self, machine: Mapping[str, Any], fault: Mapping[str, Any], number: str) -> dict[str, str]:
        cause, action = self._rng.choice(list(zip(fault["causes"], fault["actions"], strict=True)))
        known = {"kind": machine["kind"], "part": fault["part"], "pn": number}
        return known | {"cause": self._fill(cause, known), "action": self._fill(action, known)}

    def _part_number(self, fault: Mapping[str, Any]) -> str:
        return f"{fault['code']}-{self._rng.randint(10_000, 39_999)}-{self._rng.choice('ACDE')}"

    def _pick(self, pool: str) -> str:
        return str(self._rng.choice(self._words[pool]))

    def _some(self, pool: str, count: int) -> list[str]:
        return [self._fill(template) for template in self._rng.sample(self._words[pool], count)]

    def _fill(self, template: str, known: Mapping[str, str] = {}) -> str:
        """`template` with every `{field}` from `known`, else drawn; `{Field}` begins with a capital."""
        parts: list[str] = []
        for literal, field, _, _ in string.Formatter().parse(template):
            parts.append(literal)
            if field is not None:
                name = field.lower()
                value = known[name] if known and name in known else self._fillers[name]()
                parts.append(self._capital(value) if field[0].isupper() else value)
        return "".join(parts)

    @staticmethod
    def _capital(text: str) -> str:
        return text[:1].upper() + text[1:]

    def _join(self, *sentences: str) -> str:
        return " ".join(self._capital(sentence) for sentence in sentences if sentence)
