"""What every store must do, as pytest classes that ship with the package; needs pytest.

A test module for an adapter subclasses one of them and gives it one fixture, `opener`:

    class TestMyVectors(VectorConformance, DurableConformance):
        @pytest.fixture(scope="class")
        def opener(self) -> Opener: ...          # or a module-level fixture of that name

`opener(context)` opens a store for a `PlaneContext`. Stores that outlive their process add `DurableConformance`,
stores behind a server add `OutageConformance`.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"recall.planes.conformance.{name}" for name in ("suite", "writing", "filtering", "vector", "search", "graph")),
    *(f"recall.planes.conformance.{name}" for name in ("rows", "durable_rows", "durability", "outage")),
)
