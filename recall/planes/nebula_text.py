"""nGQL text: identifiers, literals, keys as vertex ids, batches bounded in rows and bytes. Talks to no server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from recall.errors import ConfigError
from recall.registry import Registry

# Internal tags start with a capital: entity names cannot.
GONE = "Recall_gone"
TENANT = "Recall_tenant"
# A text longer than this goes as a parameter, which the server's limit on statement text does not count.
_INLINE_BYTES = 65_536
_INT64_MIN = -(2**63)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\0": "\\000"})

Scalar = None | bool | int | float | str


def quoted(identifier: str) -> str:
    """A back-ticked identifier; only names that the registry has checked come here."""
    if not identifier.replace("_", "a").isalnum() or not identifier.isascii():
        raise ConfigError(f"{identifier!r} cannot be a name in NebulaGraph")
    return f"`{identifier}`"


def text(value: str) -> str:
    """A string literal that round-trips every code point."""
    return f'"{value.translate(_ESCAPES)}"'


def literal(value: Scalar) -> str:
    """Any scalar as a literal. Floats are written without an exponent, which not every position accepts."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        # The scanner reads the sign apart from the digits, and 2^63 alone is out of range.
        return str(value) if value != _INT64_MIN else f"({_INT64_MIN + 1} - 1)"
    plain = format(Decimal(repr(value)), "f")
    return plain if "." in plain else f"{plain}.0"


def gone_vid(key: str) -> str:
    """Vertex that remembers the version of a deleted row. No edge ever ends there, so no walk can pass through it."""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"recall-gone").hexdigest()


def tenant_vid(tenant: str) -> str:
    """Vertex that says the tenant was prepared."""
    return hashlib.blake2b(tenant.encode(), digest_size=16, person=b"recall-tenant").hexdigest()


def owner_rank(owner: str, source: str) -> int:
    """Rank of an edge: 0 when its source owns it, else 62 bits of the owner's key.

    So two rows of an edge table may declare the same edge, and deleting one leaves the other's.
    """
    return 0 if owner == source else (int(owner[:16], 16) >> 2) | 1


def space_name(prefix: str, registry: Registry, tenant: str | None) -> str:
    """Space of a graph version: one for all tenants, or the tenant's own."""
    shared = f"{prefix}_{registry.graph_version()}"
    if tenant is None:
        return shared
    return f"{shared}_{hashlib.blake2b(tenant.encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Statement:
    """Text for the server and the parameters it names."""

    text: str
    params: dict[str, Scalar | list[str]] = field(default_factory=dict)


def vid_list(keys: Iterable[str]) -> str:
    return ",".join(f'"{key}"' for key in keys)


def inserts(
    head: str, rows: Iterable[tuple[str, Sequence[Scalar]]], max_rows: int, max_bytes: int
) -> Iterator[Statement]:
    """`head VALUES key:(values), …` in statements of at most `max_rows` rows and about `max_bytes` bytes."""
    parts: list[str] = []
    params: dict[str, Scalar | list[str]] = {}
    size = 0
    for key, values in rows:
        written = [_value(value, params) for value in values]
        part = f"{key}:({','.join(written)})"
        length = len(part.encode()) + 2
        if parts and (len(parts) >= max_rows or size + length > max_bytes):
            yield Statement(f"{head} VALUES {', '.join(parts)}", _named_in(params, parts))
            kept = {param: value for param, value in params.items() if f"${param}" in written}
            parts, params, size = [], kept, 0
        parts.append(part)
        size += length
    if parts:
        yield Statement(f"{head} VALUES {', '.join(parts)}", _named_in(params, parts))


def _named_in(params: dict[str, Scalar | list[str]], parts: Sequence[str]) -> dict[str, Scalar | list[str]]:
    if not params:
        return {}
    joined = ",".join(parts)
    return {param: value for param, value in params.items() if f"${param}" in joined}


def _value(value: Scalar, params: dict[str, Scalar | list[str]]) -> str:
    if isinstance(value, str) and len(value) > _INLINE_BYTES:
        param = f"long_{len(params):04d}"
        params[param] = value
        return f"${param}"
    return literal(value)


def chunks(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
