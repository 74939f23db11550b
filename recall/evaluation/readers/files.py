"""Files of data sets: JSON, JSON lines, and where in a folder they lie. Errors name the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from recall.errors import InvalidRequest

# Tenant (None: the importing command's own), entity, row.
Record = tuple[str | None, str, dict[str, object]]


def read_json(path: Path) -> object:
    """Parsed JSON of a whole file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InvalidRequest(f"{path}: not JSON: {error}") from None


def read_json_objects(path: Path) -> list[dict[str, object]]:
    """A file that is one JSON list of objects."""
    parsed = read_json(path)
    if not isinstance(parsed, list) or not all(isinstance(item, dict) for item in parsed):
        raise InvalidRequest(f"{path}: expected a JSON list of objects")
    return parsed


def read_jsonl(path: Path) -> Iterator[dict[str, object]]:
    """Objects of a JSON-lines file, blank lines left out.

    Lines end at the byte `\\n` and nowhere else: U+2028 and U+0085 are ordinary characters inside JSON strings.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _object(line, path, number)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror or error}") from None


def _object(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"{path}:{number}: expected a JSON object, got {type(parsed).__name__}")
    return parsed


def find_file(paths: Sequence[Path], *names: str) -> Path:
    """The file with one of `names` among `paths`, each a file or a folder that may hold it."""
    for path in paths:
        for name in names:
            if path.is_dir() and (path / name).is_file():
                return path / name
            if path.name == name and path.is_file():
                return path
    shown = ", ".join(map(str, paths)) or "no path"
    raise InvalidRequest(f"no {' or '.join(names)} in {shown}")


def expand(paths: Sequence[Path], suffix: str) -> list[Path]:
    """`paths` with every folder replaced by its files that end in `suffix`, in name order."""
    found: list[Path] = []
    for path in paths:
        found.extend(sorted(path.glob(f"*{suffix}")) if path.is_dir() else [path])
    if not found:
        raise InvalidRequest(f"no *{suffix} file in {', '.join(map(str, paths)) or 'no path'}")
    return found


def text(row: dict[str, object], field: str, path: Path) -> str:
    """A field that must be there as text (a number is taken as its decimal form)."""
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidRequest(f"{path}: {field!r} must be text, got {value!r} in {str(row)[:80]}")
    return str(value)


def texts(value: object) -> tuple[str, ...]:
    """A text, a list of texts or nothing, as texts; numbers as their decimal form."""
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    return (str(value),)
