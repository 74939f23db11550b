"""Which processes a measurement is about."""

from __future__ import annotations

from pathlib import Path


def family(root: int) -> list[int]:
    """Process ids of `root` and everything below it, Ray's own included. Linux only."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found
