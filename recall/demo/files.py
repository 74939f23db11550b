"""The demo tenant as files that `recall import` reads."""

from __future__ import annotations

import json
from pathlib import Path

from recall.demo.generator import DEFAULT_SEED, generate

ENTITIES = Path(__file__).with_name("entities.yaml")


def write_jsonl(directory: str | Path, seed: int = DEFAULT_SEED, scale: float = 1.0) -> dict[str, Path]:
    """Write `<entity>.jsonl` per entity into `directory` (made when missing); returns the paths by entity."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    for entity, rows in generate(seed, scale).items():
        written[entity] = folder / f"{entity}.jsonl"
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        written[entity].write_text("".join(lines), encoding="utf-8")
    return written
