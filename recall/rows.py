"""What the source of truth holds: callers, refs, rows. Nouns only, no behaviour that reads anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import TypeAliasType

# A named alias, because pydantic cannot unfold a bare recursive one.
Json = TypeAliasType("Json", "bool | int | float | str | list[Json] | dict[str, Json] | None")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant and, for a narrower credential, one scope inside it. Made from a credential only."""

    tenant: str
    scope: str | None = None


class Ref(NamedTuple):
    """Identity of a row inside a tenant. Orders by (entity, id): the tie-break everywhere.

    A named tuple and not a dataclass, because fusion hashes thousands of them per request.
    """

    entity: str
    id: str


class Shipped:
    """A slotted dataclass that is pickled by position: half the time and less than by the dataclass's own state.

    Answers between processes hold hundreds of them.
    """

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), tuple(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Row(Shipped):
    """One version of a row. `values`: the declared columns, JSON-ready, in declaration order, key column included."""

    ref: Ref
    version: int
    values: Mapping[str, Json]
    scope: str | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A delete: outranks every write of `ref` whose version is not higher."""

    ref: Ref
    version: int
