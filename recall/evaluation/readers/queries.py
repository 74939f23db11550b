"""The noun of every benchmark: a query, the tenant it is asked in, and the refs that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recall.rows import Json, Ref


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `relevant` holds judged refs with a positive grade, best first; `grades` runs beside it.

    `kind` is the set's own category ("2hop", "temporal", "bridge"; "" for none), `extra` what only that set has.
    `tenant` None means the tenant that the set was imported into.
    """

    id: str
    text: str
    tenant: str | None
    relevant: tuple[Ref, ...]
    grades: tuple[int, ...] = ()
    answers: tuple[str, ...] = ()
    kind: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)
