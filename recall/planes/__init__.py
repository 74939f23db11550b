"""One module per store. `open_planes` picks the modules that the settings name; nothing above knows which."""

from __future__ import annotations

from recall.planes.opening import (
    ModelId,
    PlaneContext,
    Planes,
    open_graph,
    open_planes,
    open_rows,
    open_search,
    open_vector,
    plane_context,
)

__all__ = [
    "ModelId",
    "PlaneContext",
    "Planes",
    "open_graph",
    "open_planes",
    "open_rows",
    "open_search",
    "open_vector",
    "plane_context",
]
