"""Altitude: which layer of the digest tree answers. Pure.

Rows are the only layer until a tenant has digests; every other altitude then falls back to rows and says so.
"""

from __future__ import annotations

from recall.results import Altitude, Degraded, DegradedCode

_NEEDS_DIGESTS: frozenset[Altitude] = frozenset({"scope", "tenant", "mixed"})


def without_digests(requested: Altitude) -> tuple[Altitude, Degraded | None]:
    """The altitude used for a tenant without digests, and the degradation to report, if any."""
    if requested in _NEEDS_DIGESTS:
        detail = f"altitude {requested} was asked for, but the tenant has no digests; rows were returned"
        return "entity", Degraded("digest", DegradedCode.NO_DIGESTS, detail)
    return "entity", None
